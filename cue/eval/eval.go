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
	releasePath = cue.ParsePath("release")
	filesPath   = cue.ParsePath("files")
	confirmPath = cue.ParsePath("confirm")
)

// Evaluate is what the child runs, in this process and without limits.
func Evaluate(req *Request) *Result {
	return evaluate(req, min(maxWorkers, runtime.GOMAXPROCS(0)), func(string, bool) {})
}

// evaluate tells progress what it begins and ends with: "the fleet", or a service.
func evaluate(req *Request, workers int, progress func(what string, begins bool)) *Result {
	for _, f := range req.Files {
		if !fs.ValidPath(f.Path) || f.Path == "." {
			return &Result{Problems: []Problem{{Severity: SeverityError, Message: fmt.Sprintf("no path from the root of a tree: %q", f.Path)}}}
		}
	}
	t := newTree(req.Files)
	progress("the fleet", true)
	policy, problems := guarded("", t.fleet)
	progress("the fleet", false)
	res := &Result{Problems: fold(problems)}
	if res.Failed() {
		return res
	}
	res.Policy = policy
	e := &evaluation{req: req, tree: t, policy: &policy, progress: progress}
	names := e.selected(&problems)

	units := make([][]Unit, len(names))
	found := make([][]Problem, len(names))
	todo := make(chan int)
	var wg sync.WaitGroup
	size := max(1, min(batchSize, (len(names)+workers-1)/workers)) // a small repo keeps all workers busy too
	for range workers {
		wg.Go(func() {
			for from := range todo {
				to := min(from+size, len(names))
				e.batch(names[from:to], units[from:to], found[from:to])
			}
		})
	}
	for from := 0; from < len(names); from += size {
		todo <- from
	}
	close(todo)
	wg.Wait()

	res.Units = slices.Concat(units...)
	res.Problems = fold(slices.Concat(append(found, problems)...))
	return res
}

// evaluation is one request under way; it is only read while batches run.
type evaluation struct {
	req      *Request
	tree     *tree
	policy   *manifest.Policy
	progress func(string, bool)
}

// selected are the services to evaluate; what the request names and the tree lacks is a problem.
func (e *evaluation) selected(problems *[]Problem) []string {
	all := e.tree.services()
	for _, name := range e.req.Cohorts {
		if _, ok := e.policy.Cohorts[name]; !ok {
			*problems = append(*problems, Problem{Severity: SeverityError, Message: fmt.Sprintf("no cohort %q", name)})
		}
	}
	if len(e.req.Services) == 0 {
		return all
	}
	var out []string
	for _, name := range e.req.Services {
		if !slices.Contains(all, name) {
			*problems = append(*problems, Problem{Severity: SeverityError, Message: fmt.Sprintf("no service %q", name)})
			continue
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// cohorts are those that carry the service and are asked for, and whether any carries it at all.
func (e *evaluation) cohorts(service string) (names []string, carried bool) {
	for _, name := range sorted(e.policy.Cohorts) {
		if !slices.Contains(e.policy.Cohorts[name].Services, service) {
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
func (e *evaluation) batch(names []string, units [][]Unit, problems [][]Problem) {
	ctx := cuecontext.New()
	services := make([]*service, len(names))
	var dirs []string
	for i, name := range names {
		e.progress(name, true)
		services[i], problems[i] = e.tree.discover(name, e.policy)
		e.progress(name, false)
		if len(services[i].cue) > 0 {
			dirs = append(dirs, services[i].dir)
		}
	}
	packages := map[string]*build.Instance{}
	if len(dirs) > 0 {
		for _, name := range names { // they are parsed together
			e.progress(name, true)
		}
		packages = e.tree.load(dirs...)
		for _, name := range names {
			e.progress(name, false)
		}
	}
	shipped := ctx.CompileString(schema.Service, cue.Filename(builtin+"service.cue"))
	for i, s := range services {
		e.progress(s.name, true)
		run := &serviceRun{evaluation: e, ctx: ctx, service: s, inst: packages[s.dir], shipped: shipped, hide: newSecrets()}
		us, ps := guarded(s.name, func() ([]Unit, []Problem) { return run.all(problems[i]) })
		run.hide.scrub(ps)
		units[i], problems[i] = us, ps
		e.progress(s.name, false)
	}
}

// guarded turns a panic of the evaluator into a problem of the service: the others go on. The panic's own text may hold values.
func guarded[T any](service string, f func() (T, []Problem)) (out T, problems []Problem) {
	defer func() {
		if p := recover(); p != nil {
			var zero T
			out = zero
			problems = []Problem{{Severity: SeverityError, Service: service, Message: "the evaluator crashed on this in " + crashSite() + ": this is a bug of muster or of CUE"}}
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
