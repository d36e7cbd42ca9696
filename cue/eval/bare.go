package eval

import (
	"fmt"
	"sync"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

// Bare is a yardstick for benchmarks: the units of a repository with their layers merged beforehand, and a loop that does with them only what the
// library must do. It lives here since only this package imports CUE.
type Bare struct {
	tree     *tree
	services []bareService
	workers  int
}

type bareService struct {
	name, dir string
	units     []bareUnit
}

type bareUnit struct {
	cohort string
	merged *layer.Node
	expr   ast.Expr // made anew for each loop
}

// NewBare merges the layers of every service that has a schema and is valid.
func NewBare(req *Request) (*Bare, error) {
	to := newAnswers()
	b := &Bare{tree: newTree(req.Files), workers: workers()}
	f := evaluateFleet(b.tree, to)
	if f.failed() {
		return nil, fmt.Errorf("the fleet: %s", first(f.Problems))
	}
	e := &evaluation{req: req, tree: b.tree, policy: &f.Policy, to: to}
	names, _ := selected(req, e.policy)
	for _, name := range names {
		ctx := cuecontext.New()
		s, problems := e.discover(name)
		if failed(problems) || len(s.cue) == 0 {
			return nil, fmt.Errorf("service %s is not for this measurement: %s", name, first(problems))
		}
		r := &serviceRun{evaluation: e, ctx: ctx, service: s, inst: b.tree.load(s.dir)[s.dir], hide: newSecrets()}
		if problems := r.build(true); failed(problems) || !r.hasValues {
			return nil, fmt.Errorf("service %s is not for this measurement: %s", name, first(problems))
		}
		out := bareService{name: name, dir: s.dir}
		cohorts, _ := e.cohorts(name)
		for _, c := range cohorts {
			t := target{cohort: c, labels: e.policy.Cohorts[c].Labels}
			layers, problems := r.layers(r.inject(t, 0), t)
			if failed(problems) {
				return nil, fmt.Errorf("service %s for %s: %s", name, c, first(problems))
			}
			out.units = append(out.units, bareUnit{cohort: c, merged: layers.merged})
		}
		b.services = append(b.services, out)
	}
	return b, nil
}

// Units are how many there are.
func (b *Bare) Units() int {
	n := 0
	for _, s := range b.services {
		n += len(s.units)
	}
	return n
}

// Loop parses the packages, unifies each unit with its `values`, validates it and marshals it: in the same batches and by as many workers as an
// evaluation. It says how long that took, and how many bytes came out.
func (b *Bare) Loop() (took time.Duration, bytes int64, err error) {
	for i := range b.services {
		for j := range b.services[i].units {
			u := &b.services[i].units[j]
			u.expr = u.merged.AST()
		}
	}
	start := time.Now()
	size := max(1, min(batchSize, (len(b.services)+b.workers-1)/b.workers))
	var mu sync.Mutex
	todo := make(chan []bareService)
	var wg sync.WaitGroup
	for range b.workers {
		wg.Go(func() {
			for batch := range todo {
				n, e := b.batch(batch)
				mu.Lock()
				bytes += n
				if err == nil {
					err = e
				}
				mu.Unlock()
			}
		})
	}
	for from := 0; from < len(b.services); from += size {
		todo <- b.services[from:min(from+size, len(b.services))]
	}
	close(todo)
	wg.Wait()
	return time.Since(start), bytes, err
}

func (b *Bare) batch(services []bareService) (bytes int64, err error) {
	ctx := cuecontext.New()
	var dirs []string
	for _, s := range services {
		dirs = append(dirs, s.dir)
	}
	packages := b.tree.load(dirs...)
	for _, s := range services {
		pkg := ctx.BuildInstance(packages[s.dir])
		values := pkg.LookupPath(valuesPath)
		for _, u := range s.units {
			v := values.Unify(ctx.BuildExpr(u.expr))
			if err := v.Validate(cue.Concrete(true), cue.Final()); err != nil {
				return bytes, fmt.Errorf("service %s for %s: %w", s.name, u.cohort, err)
			}
			data, err := v.MarshalJSON()
			if err != nil {
				return bytes, fmt.Errorf("service %s for %s: %w", s.name, u.cohort, err)
			}
			bytes += int64(len(data))
		}
	}
	return bytes, nil
}

// Merged is the n-th unit's values before CUE sees them, as JSON: for other programs to be measured with.
func (b *Bare) Merged(n int) (service, cohort string, values []byte, err error) {
	for _, s := range b.services {
		if n < len(s.units) {
			values, err = encode.Encode("json", s.units[n].merged.Plain())
			return s.name, s.units[n].cohort, values, err
		}
		n -= len(s.units)
	}
	return "", "", nil, fmt.Errorf("no unit %d", n)
}

// first is what is wrong, in a few words.
func first(problems []Problem) string {
	for _, p := range problems {
		if p.Severity == SeverityError {
			return p.Path + ": " + p.Message
		}
	}
	return "it has no schema"
}
