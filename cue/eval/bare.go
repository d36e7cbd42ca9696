package eval

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
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
//
// What the loop pays for: to parse and compile each batch's packages and what they import, from sources that are in memory, and for each unit to build its
// merged values (syntax, made before), unify them with `values`, validate and marshal. What it does not: to read files and layers, to merge, to check a
// layer alone, to look at `files` and `confirm`, to write canonical files, to hand anything to another process, and to start.
type Bare struct {
	req      *Request
	tree     *tree
	services []bareService
	workers  int
}

type bareService struct {
	Name, Dir string
	Units     []bareUnit
}

type bareUnit struct {
	Cohort string
	Merged []byte   // JSON: a loop over many is not to pay for a heap full of syntax
	expr   ast.Expr // of the batch under way
}

// Cost is what a run took.
type Cost struct {
	Wall, CPU time.Duration
}

// NewBare merges the layers of every service that has a schema and is valid.
func NewBare(req *Request) (*Bare, error) {
	to := newAnswers()
	b := &Bare{req: req, tree: newTree(req.Files), workers: workers()}
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
		cohorts, _ := e.cohorts(name)
		if problems := r.build(cohorts); failed(problems) || !r.hasValues {
			return nil, fmt.Errorf("service %s is not for this measurement: %s", name, first(problems))
		}
		out := bareService{Name: name, Dir: s.dir}
		for _, c := range cohorts {
			t := target{cohort: c, labels: e.policy.Cohorts[c].Labels}
			layers, problems := r.layers(r.inject(t, 0), t)
			if failed(problems) {
				return nil, fmt.Errorf("service %s for %s: %s", name, c, first(problems))
			}
			merged, err := encode.Encode("json", layers.merged.Plain())
			if err != nil {
				return nil, fmt.Errorf("service %s for %s: %w", name, c, err)
			}
			out.Units = append(out.Units, bareUnit{Cohort: c, Merged: merged})
		}
		b.services = append(b.services, out)
	}
	return b, nil
}

// Save gives the merged units, for LoadBare in a process that did nothing before.
func (b *Bare) Save() ([]byte, error) { return json.Marshal(b.services) }

// LoadBare is what NewBare gives, of units that were saved. It sets this process up as an evaluation child is.
func LoadBare(req *Request, saved []byte) (*Bare, error) {
	b := &Bare{req: req, tree: newTree(req.Files), workers: workers()}
	if err := json.Unmarshal(saved, &b.services); err != nil {
		return nil, err
	}
	debug.FreeOSMemory() // what reading left behind is not to make the loop cheaper
	Hasten(defaultMemory / 32)
	return b, nil
}

// Units are how many there are.
func (b *Bare) Units() int {
	n := 0
	for _, s := range b.services {
		n += len(s.Units)
	}
	return n
}

// Loop parses the packages, unifies each unit with its `values`, validates it and marshals it: in the same batches and by as many workers as an
// evaluation. It says what that cost, and how many bytes came out. Each worker's next batch is made ready before the clock goes on; so workers wait for
// each other, which costs no processor time. CPU is as processor tells it.
func (b *Bare) Loop(processor func() time.Duration) (cost Cost, bytes int64, err error) {
	size := max(1, min(batchSize, (len(b.services)+b.workers-1)/b.workers))
	batches := slices.Collect(slices.Chunk(b.services, size))
	for wave := range slices.Chunk(batches, b.workers) {
		for _, batch := range wave {
			if err := ready(batch); err != nil {
				return cost, bytes, err
			}
		}
		start, before := time.Now(), processor()
		counts, errs := make([]int64, len(wave)), make([]error, len(wave))
		var wg sync.WaitGroup
		for i, batch := range wave {
			wg.Go(func() { counts[i], errs[i] = b.batch(batch) })
		}
		wg.Wait()
		cost.Wall += time.Since(start)
		cost.CPU += processor() - before
		for i, batch := range wave {
			bytes += counts[i]
			for _, s := range batch {
				for j := range s.Units {
					s.Units[j].expr = nil
				}
			}
		}
		if err := errors.Join(errs...); err != nil {
			return cost, bytes, err
		}
	}
	return cost, bytes, nil
}

// ready makes the syntax of a batch's units.
func ready(batch []bareService) error {
	for _, s := range batch {
		for j := range s.Units {
			u := &s.Units[j]
			n, errs := layer.Read("merged.json", u.Merged, true)
			if len(errs) > 0 {
				return fmt.Errorf("service %s for %s: %w", s.Name, u.Cohort, errs[0])
			}
			u.expr = n.AST()
		}
	}
	return nil
}

// Whole evaluates all, in this process, with the check of each layer alone or without: the difference is what that check costs.
func (b *Bare) Whole(layersAlone bool, processor func() time.Duration) Cost {
	start, before := time.Now(), processor()
	to := newAnswers()
	t := newTree(b.req.Files)
	if f := evaluateFleet(t, to); !f.failed() {
		e := &evaluation{req: b.req, tree: t, policy: &f.Policy, to: to, mergedOnly: !layersAlone}
		e.all(b.workers)
	}
	return Cost{Wall: time.Since(start), CPU: processor() - before}
}

func (b *Bare) batch(services []bareService) (bytes int64, err error) {
	ctx := cuecontext.New()
	var dirs []string
	for _, s := range services {
		dirs = append(dirs, s.Dir)
	}
	packages := b.tree.load(dirs...)
	for _, s := range services {
		pkg := ctx.BuildInstance(packages[s.Dir])
		values := pkg.LookupPath(valuesPath)
		for _, u := range s.Units {
			v := values.Unify(ctx.BuildExpr(u.expr))
			if err := v.Validate(cue.Concrete(true), cue.Final()); err != nil {
				return bytes, fmt.Errorf("service %s for %s: %w", s.Name, u.Cohort, err)
			}
			data, err := v.MarshalJSON()
			if err != nil {
				return bytes, fmt.Errorf("service %s for %s: %w", s.Name, u.Cohort, err)
			}
			bytes += int64(len(data))
		}
	}
	return bytes, nil
}

// Merged is the n-th unit's values before CUE sees them, as JSON: for other programs to be measured with.
func (b *Bare) Merged(n int) (service, cohort string, values []byte, err error) {
	for _, s := range b.services {
		if n < len(s.Units) {
			return s.Name, s.Units[n].Cohort, s.Units[n].Merged, nil
		}
		n -= len(s.Units)
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
