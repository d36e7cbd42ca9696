package eval

import (
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"

	"github.com/muster-config/muster/cue/schema"
	"github.com/muster-config/muster/distributor/manifest"
)

// batchSize is how many services share a CUE context at most: one that lives on grows for ever, and a fresh one for each costs more.
const batchSize = 25

// maxWorkers bounds how many batches are evaluated at once; each holds a context.
const maxWorkers = 4

var (
	valuesPath  = cue.ParsePath("values")
	configPath  = cue.ParsePath("#Config")
	basePath    = cue.ParsePath("base")
	overlayPath = cue.ParsePath("overlay")
	cohortPath  = cue.ParsePath("cohort")
	hostPath    = cue.ParsePath("host")
	releasePath = cue.ParsePath("release")
	filesPath   = cue.ParsePath("files")
	confirmPath = cue.ParsePath("confirm")
)

// Evaluate is what the child runs, in this process and without limits.
func Evaluate(req *Request) *Result {
	to := newAnswers()
	evaluate(req, nil, workers(), to)
	return to.result(req)
}

func workers() int { return min(maxWorkers, runtime.GOMAXPROCS(0)) }

// evaluate hands to what the fleet and each selected service come to. The fleet is not evaluated if it is known.
func evaluate(req *Request, known *manifest.Policy, workers int, to sink) {
	for _, f := range req.Files {
		if !fs.ValidPath(f.Path) || f.Path == "." {
			to.fleet(&fleetAnswer{Problems: []Problem{{Severity: SeverityError, Message: fmt.Sprintf("no path from the root of a tree: %q", f.Path)}}})
			return
		}
	}
	t := newTree(req.Files)
	policy := known
	if policy == nil {
		f := evaluateFleet(t, to)
		if f.failed() {
			return
		}
		policy = &f.Policy
	}
	e := &evaluation{req: req, tree: t, policy: policy, to: to}
	e.all(workers)
}

// all evaluates what the request selects.
func (e *evaluation) all(workers int) {
	if slices.Contains(e.policy.Precedence, "host") {
		e.hosts = e.tree.roster(e.policy)
	}
	names, _ := selected(e.req, e.policy)
	todo := make(chan int)
	var wg sync.WaitGroup
	size := max(1, min(batchSize, (len(names)+workers-1)/workers)) // a small repo keeps all workers busy too
	for range workers {
		wg.Go(func() {
			for from := range todo {
				e.batch(names[from:min(from+size, len(names))])
			}
		})
	}
	for from := 0; from < len(names); from += size {
		todo <- from
	}
	close(todo)
	wg.Wait()
}

func evaluateFleet(t *tree, to sink) *fleetAnswer {
	to.begins(theFleet)
	f := &fleetAnswer{}
	f.Policy, f.Problems = guarded("", t.fleet)
	f.Problems = fold(f.Problems)
	to.fleet(f)
	to.ends(theFleet)
	return f
}

// evaluation is one request under way; it is only read while batches run.
type evaluation struct {
	req    *Request
	tree   *tree
	policy *manifest.Policy
	hosts  roster // nil unless the precedence has host
	to     sink
	long   bool // tests compare with the long way, see quick.go

	mergedOnly bool // no layer is checked alone: a benchmark asks what that costs
}

// cohorts are those that carry the service and are asked for, and whether any carries it at all.
func (e *evaluation) cohorts(service string) (names []string, carried bool) {
	for _, name := range sorted(e.policy.Cohorts) {
		if !carries(e.policy.Cohorts[name].Services, service) {
			continue
		}
		carried = true
		if len(e.req.Cohorts) == 0 || slices.Contains(e.req.Cohorts, name) {
			names = append(names, name)
		}
	}
	return names, carried
}

// batch evaluates some services in one fresh context.
func (e *evaluation) batch(names []string) {
	ctx := cuecontext.New()
	services := make([]*service, len(names))
	problems := make([][]Problem, len(names))
	var dirs []string
	for i, name := range names {
		e.to.begins(name)
		services[i], problems[i] = e.discover(name)
		e.to.ends(name)
		if len(services[i].cue) > 0 {
			dirs = append(dirs, services[i].dir)
		}
	}
	packages := map[string]*build.Instance{}
	if len(dirs) > 0 {
		e.to.begins(names...) // they are parsed together
		packages = e.tree.load(dirs...)
		e.to.ends(names...)
	}
	seen := &seen{imports: map[*build.Instance]*packageSecrets{}, keys: map[string]bool{}, shape: &shape{}}
	shipped := ctx.CompileString(schema.Service, cue.Filename(builtin+"service.cue"))
	for i, s := range services {
		e.to.begins(s.name)
		run := &serviceRun{evaluation: e, ctx: ctx, service: s, inst: packages[s.dir], shipped: shipped, hide: newSecrets(), seen: seen}
		run.hide.names = seen.keys
		a := &answer{Service: s.name}
		a.Units, a.Problems = guarded(s.name, func() ([]Unit, []Problem) { return run.all(problems[i]) })
		run.hide.scrub(a.Problems)
		envStrings(a.Problems)
		overridePlaces(a.Problems, a.Units)
		a.Schema = run.jsonSchema()
		a.Problems = fold(a.Problems)
		e.to.service(a)
		e.to.ends(s.name)
	}
}

const crashMessage = "the evaluator crashed"

// guarded turns a panic of the evaluator into a problem of the service: the others go on. The panic's own text may hold values.
func guarded[T any](service string, f func() (T, []Problem)) (out T, problems []Problem) {
	defer func() {
		if p := recover(); p != nil {
			var zero T
			out = zero
			problems = []Problem{{Severity: SeverityError, Service: service, Message: crashMessage + " on this in " + crashSite() + ": this is a bug of muster or of CUE"}}
		}
	}()
	return f()
}

// crashSite is the function that panicked.
func crashSite() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	panicked := false
	for {
		f, more := frames.Next()
		switch {
		case strings.HasPrefix(f.Function, "runtime."):
			panicked = panicked || strings.Contains(f.Function, "panic")
		case panicked:
			return f.Function
		}
		if !more {
			return "an unknown place"
		}
	}
}
