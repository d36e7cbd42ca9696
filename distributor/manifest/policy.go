package manifest

// Policy is the fleet section of a config repo (CONFIG-REPO.md "fleet") as a release carries it. Defaults are filled in.
type Policy struct {
	Muster     string                   `json:"muster,omitempty"` // evaluator line, "0.1"
	Precedence []string                 `json:"precedence"`
	Cohorts    map[string]CohortPolicy  `json:"cohorts"`
	Inventory  *Inventory               `json:"inventory,omitempty"`
	Rollouts   map[string]RolloutPolicy `json:"rollouts"` // always has "standard"
	Ext        Ext                      `json:"ext,omitempty"`
}

// CohortPolicy is one cohort as the fleet declares it.
type CohortPolicy struct {
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels"`
	Services    []string          `json:"services"` // the services it carries, expanded from globs, sorted
	Hosts       HostsPolicy       `json:"hosts"`
	Rollout     string            `json:"rollout"`
	Order       int               `json:"order"`
	Ephemeral   bool              `json:"ephemeral"`
	RetireAfter string            `json:"retire_after,omitempty"` // Go duration
}

// HostsPolicy says who is expected in a cohort; at least one is set.
type HostsPolicy struct {
	List   []string            `json:"list,omitempty"`
	Match  map[string][]string `json:"match,omitempty"` // label of the inventory → accepted values
	Expect *Expect             `json:"expect,omitempty"`
}

// Expect is an expected number of hosts; a plain number n in CUE is {Min: n, Max: n}.
type Expect struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Inventory is where host names come from.
type Inventory struct {
	File string `json:"file,omitempty"`
	HTTP string `json:"http,omitempty"`
}

// RolloutPolicy is how a cohort takes a new release (CONFIG-REPO.md "fleet", DESIGN.md section 8).
type RolloutPolicy struct {
	Waves         []Wave          `json:"waves"`
	Gates         map[string]Gate `json:"gates"`
	MinReported   float64         `json:"min_reported"`
	MaxFailed     int             `json:"max_failed"`
	MaxInFlight   string          `json:"max_in_flight"` // "10%" or a count
	Spread        string          `json:"spread"`
	Timeout       string          `json:"timeout"`
	OnFailure     string          `json:"on_failure"` // rollback | halt
	Watch         string          `json:"watch"`
	ApproveBefore []int           `json:"approve_before"`
	Windows       []string        `json:"windows"`
	Independent   bool            `json:"independent"`
}

// Wave is one step of a rollout: percent, count or match, then a bake.
type Wave struct {
	Percent float64           `json:"percent,omitempty"`
	Count   int               `json:"count,omitempty"`
	Match   map[string]string `json:"match,omitempty"`
	Min     int               `json:"min,omitempty"`
	Bake    string            `json:"bake"`
}

// Gate is a health condition that must hold for a whole bake.
type Gate struct {
	Prometheus string       `json:"prometheus,omitempty"`
	HTTP       string       `json:"http,omitempty"`
	Min        *float64     `json:"min,omitempty"`
	Max        *float64     `json:"max,omitempty"`
	Compare    *GateCompare `json:"compare,omitempty"`
	Every      string       `json:"every"`
	Fails      int          `json:"fails"`
	NoData     string       `json:"no_data"` // wait | fail
}

// GateCompare compares the canary with the concurrent control group.
type GateCompare struct {
	Ratio float64 `json:"ratio"`
}
