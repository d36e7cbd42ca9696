package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
)

// RefusedError says that nothing of the commit can be published.
type RefusedError struct {
	Problems []eval.Problem
}

func (e *RefusedError) Error() string {
	if reason := reasonOf(e.Problems); reason != "" {
		return reason
	}
	return "does not evaluate"
}

// reasonOf is the first error in one line, and how many more there are; "" without one. It goes into releases, which are signed and stay: it tells the place
// and the kind of the fault and quotes no value.
func reasonOf(problems []eval.Problem) string {
	var errs []eval.Problem
	for _, p := range problems {
		if isError(p) {
			errs = append(errs, p)
		}
	}
	if len(errs) == 0 {
		return ""
	}
	p := errs[0]
	var b strings.Builder
	if p.Service != "" {
		fmt.Fprintf(&b, "%s: ", p.Service)
	}
	if p.Path != "" {
		fmt.Fprintf(&b, "%s: ", p.Path)
	}
	b.WriteString(p.Fault())
	if len(p.SetAt) > 0 {
		fmt.Fprintf(&b, " (%s)", p.SetAt[0])
	} else if len(p.Cohorts) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(p.Cohorts, ", "))
	}
	if more := len(errs) - 1; more > 0 {
		fmt.Fprintf(&b, ", and %d more", more)
	}
	return b.String()
}

// unevaluated is an error if the evaluation ended before it came to all services: that is no fault of these, and must not keep their cohorts where they are.
func unevaluated(problems []eval.Problem) error {
	for _, p := range problems {
		if p.Unevaluated() {
			return fmt.Errorf("service %s: %s; publish again, nothing was published", p.Service, p.Message)
		}
	}
	return nil
}

// Refused reports whether the commit as a whole cannot be published: what is wrong is about no service (the fleet, the tree), or it blocks every cohort.
func (r *Rendered) Refused() bool {
	n := len(r.Policy.Cohorts)
	return r.broken() || n > 0 && len(r.Blocked()) == n
}

// broken reports whether an error is about no service.
func (r *Rendered) broken() bool {
	return slices.ContainsFunc(r.Problems, func(p eval.Problem) bool { return isError(p) && p.Service == "" })
}

// Blocked are the cohorts that cannot be published, each with the reason in one line: a service that does not validate blocks the cohorts that carry it, or
// those of them in which it does not. What is wrong with the commit as a whole is Refused, and blocks none by itself.
func (r *Rendered) Blocked() map[string]string { return r.blockedBy(r.Problems) }

func (r *Rendered) blockedBy(problems []eval.Problem) map[string]string {
	blocked := map[string]string{}
	for name, policy := range r.Policy.Cohorts {
		var here []eval.Problem
		for _, p := range problems {
			if isError(p) && p.Service != "" && (slices.Contains(p.Cohorts, name) || len(p.Cohorts) == 0 && slices.Contains(policy.Services, p.Service)) {
				here = append(here, p)
			}
		}
		if reason := reasonOf(here); reason != "" {
			blocked[name] = reason
		}
	}
	return blocked
}

// Found are all problems: those of Build, and those that the last At found when it evaluated services at their epochs.
func (r *Rendered) Found() []eval.Problem { return slices.Concat(r.Problems, r.late) }
