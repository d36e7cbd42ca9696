package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// roleEnv makes this program one of the two sides that are measured, each in processes of its own.
const roleEnv = "MUSTER_BENCH_ROLE"

// outcome is what a side says of one run.
type outcome struct {
	Took   time.Duration // without the start of the process
	CPU    time.Duration // of all processors, the child's included: what a busy machine does not change
	Tree   time.Duration // of it: reading the work tree
	Units  int
	Bytes  int64
	Parent int64 // peak memory in KiB
	Child  int64
	Err    string
}

// play runs a role and exits, if this process is one.
func play() {
	role, dir, ok := strings.Cut(os.Getenv(roleEnv), " ")
	if !ok {
		return
	}
	var err error
	switch role {
	case "validate", "cached":
		err = validate(dir, role == "cached")
	case "bare":
		err = bare(dir)
	case "loop":
		err = loop(dir)
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// validate is what `muster validate` does, up to printing.
func validate(dir string, cached bool) error {
	start := time.Now()
	eval.Hasten(64 << 20)
	var out outcome
	opts := pipeline.Options{Verdict: true}
	if cached {
		cache, err := eval.OpenCache(dir + ".cache")
		if err != nil {
			return err
		}
		opts.Cache = cache
	}
	repo, err := source.Open(dir)
	if err != nil {
		return err
	}
	tree, err := repo.WorkTreeSeen(opts.Cache.Dir())
	if err != nil {
		return err
	}
	out.Tree = time.Since(start)
	res, err := pipeline.Build(context.Background(), tree, opts)
	if err != nil {
		return err
	}
	if res.Failed() {
		return fmt.Errorf("the generated repository is not valid: %+v", res.Problems[0])
	}
	out.Took = time.Since(start)
	for _, u := range res.Units() {
		out.Units++
		for _, f := range u.Files {
			out.Bytes += int64(len(f.Data))
		}
	}
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return err
	}
	out.Parent = ru.Maxrss
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &ru); err != nil {
		return err
	}
	out.Child = ru.Maxrss
	out.CPU = spent(syscall.RUSAGE_SELF) + spent(syscall.RUSAGE_CHILDREN)
	return json.NewEncoder(os.Stdout).Encode(out)
}

// spent is the processor time of this process, or of its children that ended.
func spent(who int) time.Duration {
	var ru syscall.Rusage
	if syscall.Getrusage(who, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// request is all that evaluation may look at, read from a directory.
func request(dir string) (*eval.Request, error) {
	req := &eval.Request{FilesToo: true}
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		data, err := fs.ReadFile(root, name)
		req.Files = append(req.Files, eval.TreeFile{Path: name, Data: data})
		return err
	})
	return req, err
}

// saved is where bare leaves the merged units of a repository for loop.
func saved(dir string) string { return dir + ".merged" }

// loop runs the bare loop once, in this new process: as a child evaluates once.
func loop(dir string) error {
	req, err := request(dir)
	if err != nil {
		return err
	}
	units, err := os.ReadFile(saved(dir))
	if err != nil {
		return err
	}
	b, err := eval.LoadBare(req, units)
	if err != nil {
		return err
	}
	o := outcome{Units: b.Units()}
	cost, bytes, err := b.Loop(func() time.Duration { return spent(syscall.RUSAGE_SELF) })
	if err != nil {
		return err
	}
	o.Took, o.CPU, o.Bytes = cost.Wall, cost.CPU, bytes
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return err
	}
	o.Parent = ru.Maxrss
	return json.NewEncoder(os.Stdout).Encode(o)
}

// bare prepares once, and does one run for each line that it is given: "loop", or "whole" and "merged" for an evaluation in this process with the check
// of layers alone and without. "save" leaves the merged units for loop, and "sample DIR N" writes N units for the cue command instead.
func bare(dir string) error {
	// As in the evaluation child.
	debug.SetGCPercent(400)
	req, err := request(dir)
	if err != nil {
		return err
	}
	b, err := eval.NewBare(req)
	if err != nil {
		return err
	}
	processor := func() time.Duration { return spent(syscall.RUSAGE_SELF) }
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		o := outcome{Units: b.Units()}
		var to string
		var n int
		var cost eval.Cost
		runtime.GC()
		switch line := lines.Text(); line {
		case "loop":
			if cost, o.Bytes, err = b.Loop(processor); err != nil {
				return err
			}
		case "whole", "merged":
			cost = b.Whole(line == "whole", processor)
		case "save":
			units, err := b.Save()
			if err == nil {
				err = os.WriteFile(saved(dir), units, 0o600)
			}
			if err != nil {
				return err
			}
		default:
			if _, err := fmt.Sscanf(line, "sample %s %d", &to, &n); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			if o.Units, err = sample(b, dir, to, n); err != nil {
				return err
			}
		}
		o.Took, o.CPU = cost.Wall, cost.CPU
		var ru syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
			return err
		}
		o.Parent = ru.Maxrss
		if err := out.Encode(o); err != nil {
			return err
		}
	}
	return lines.Err()
}

// sample writes n units, spread over all, each as a package of its own that the stock command can export.
func sample(b *eval.Bare, from, to string, n int) (int, error) {
	all := b.Units()
	n = min(n, all)
	copied := func(src, dst string) error {
		data, err := os.ReadFile(filepath.Join(from, src))
		if err != nil {
			return err
		}
		return write(filepath.Join(to, dst), data)
	}
	for _, name := range []string{"cue.mod/module.cue", "lib/schema/service.cue"} {
		if err := copied(name, name); err != nil {
			return 0, err
		}
	}
	for i := range n {
		service, _, values, err := b.Merged(i * all / n)
		if err != nil {
			return 0, err
		}
		dir := fmt.Sprintf("u%03d", i)
		if err := copied(filepath.Join("services", service, "service.cue"), filepath.Join(dir, "service.cue")); err != nil {
			return 0, err
		}
		text := fmt.Sprintf("package %s\n\nvalues: %s\n", strings.ReplaceAll(service, "-", "_"), values)
		if err := write(filepath.Join(to, dir, "merged.cue"), []byte(text)); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func write(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o644)
}
