package eval

import "strings"

// faults tell the kind of a problem by what its message has in it. No fault quotes anything.
var faults = []struct{ begins, has, fault string }{
	{begins: "unknown field", fault: "unknown field"},
	{begins: "missing: ", fault: "missing: the schema requires it"},
	{begins: "a secret stays out of the repo", fault: "a secret stays out of the repo"},
	{begins: "the default cannot be computed", fault: "the default cannot be computed"},
	{begins: "ambiguous defaults", fault: "ambiguous defaults"},
	{begins: "set twice", fault: "set twice"},
	{begins: "a second ", fault: "given twice"},
	{begins: "nothing to render", fault: "nothing to render"},
	{begins: "renders no file", fault: "renders no file: nothing would be left of it on its hosts; give it a file, or take it out of the cohort's services"},
	{begins: "carries no service", fault: "carries no service: nothing would be left on its hosts; give it a service, or take the cohort out of the fleet"},
	{begins: "was not rendered", fault: "was not rendered although the cohort carries it: report this, it is a bug"},
	{begins: "an overlay for the label", fault: "an overlay for a label that is not in the fleet's precedence"},
	{begins: "not valid ", fault: "cannot be read"},
	{begins: "a git conflict marker", fault: "a git conflict marker"},
	{begins: "evaluation exceeded", fault: "evaluation took too long"},
	{begins: "evaluation needed", fault: "evaluation needed too much memory"},
	{begins: "evaluation gave", fault: "evaluation gave too much"},
	{begins: "evaluation overflowed", fault: "evaluation overflowed the stack"},
	{begins: "evaluation was ended", fault: "evaluation was ended"},
	{begins: notEvaluated, fault: "not evaluated"},
	{begins: crashMessage, fault: crashMessage},
	{has: "release.epoch", fault: "depends on release.epoch"},
	{has: fixedHint, fault: "the package fixes another value"},
	{has: " is not one of ", fault: "not one of the values that the schema accepts"},
	{has: " is not one that the schema accepts", fault: "not one of the values that the schema accepts"},
	{has: " is out of range", fault: "out of range"},
	{has: " does not match ", fault: "does not match its pattern"},
	{has: ", not a", fault: "of the wrong type"},
}

// Fault is the kind of what is wrong without anything that the repository says: for what is kept or sent where no value belongs, such as a release.
func (p Problem) Fault() string {
	for _, f := range faults {
		if f.begins != "" && strings.HasPrefix(p.Message, f.begins) || f.has != "" && strings.Contains(p.Message, f.has) {
			return f.fault
		}
	}
	return "does not validate"
}

// notEvaluated begins the message of a service that was not reached; see Unevaluated.
const notEvaluated = "not evaluated: "

// Unevaluated reports whether a problem is none of its service: the evaluation ended before it.
func (p Problem) Unevaluated() bool { return strings.HasPrefix(p.Message, notEvaluated) }
