package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/muster-config/muster/distributor/manifest"
)

// group is one entry of a Prometheus target list (file_sd and http_sd have one format).
type group struct {
	Targets []string          `yaml:"targets"`
	Labels  map[string]string `yaml:"labels"`
	Source  string            `yaml:"source"` // Prometheus writes it in its own lists
}

// ParseTargets reads a Prometheus target list, JSON or YAML: [{"targets": ["web-1:9100"], "labels": {…}}]. A target is a host name, with a port or without; the same host may
// stand there with several ports. Hosts are of the given cohort; with "" the label `cohort` of their group says which. Prometheus' labels that cannot be labels here (__meta_…, capital
// letters) are left out. Hosts come sorted by cohort and name; an empty list is an error.
func ParseTargets(data []byte, cohort string) ([]Host, error) {
	switch {
	case len(data) > MaxBytes:
		return nil, fmt.Errorf("larger than %d MiB", MaxBytes>>20)
	case !utf8.Valid(data):
		return nil, errors.New("not UTF-8")
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	var groups []group
	if err := dec.Decode(&groups); errors.Is(err, io.EOF) {
		return nil, errors.New("is empty")
	} else if err != nil {
		return nil, fmt.Errorf("not a list of targets: %s", oneLine(err.Error()))
	}
	var more any
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one document")
	}
	var hosts []Host
	at := map[[2]string]int{}
	for i, g := range groups {
		in := cohort
		if in == "" {
			in = g.Labels["cohort"]
		}
		if !manifest.ValidName(in) {
			return nil, fmt.Errorf("entry %d: its label cohort is %.80q, which is not a name", i+1, in)
		}
		labels := map[string]string{}
		for k, v := range g.Labels {
			if manifest.ValidName(k) && k != "cohort" && v != "" && len(v) <= maxLabelBytes && !strings.ContainsFunc(v, unicode.IsControl) && len(labels) < maxLabels {
				labels[k] = v
			}
		}
		for _, target := range g.Targets {
			name := hostOf(target)
			if !manifest.ValidHost(name) {
				return nil, fmt.Errorf("entry %d: target %.80q does not begin with a host name", i+1, target)
			}
			key := [2]string{in, name}
			if _, twice := at[key]; twice {
				continue // another port of the same host
			}
			if len(hosts) == MaxHosts {
				return nil, fmt.Errorf("more than %d hosts", MaxHosts)
			}
			at[key] = len(hosts)
			hosts = append(hosts, Host{Name: name, Cohort: in, Labels: labels})
		}
	}
	if len(hosts) == 0 {
		return nil, errors.New("lists no host")
	}
	order(hosts)
	return hosts, nil
}

// hostOf is a target without its port.
func hostOf(target string) string {
	if ap, err := netip.ParseAddrPort(target); err == nil {
		return ap.Addr().String()
	}
	if i := strings.LastIndexByte(target, ':'); i >= 0 {
		return target[:i]
	}
	return target
}

// oneLine makes a parser's message fit for one line.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(strings.TrimPrefix(s, "yaml: ")), " ")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}
