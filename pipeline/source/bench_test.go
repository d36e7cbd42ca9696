package source_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/muster-config/muster/pipeline/source"
)

// fleet is a config repository of 2,000 services (12,000 files) with 2,000 commits, each of which changes one line of one service.
var fleet = sync.OnceValues(func() (string, error) {
	dir, err := tempDir()
	if err != nil {
		return "", err
	}
	if _, err := runGit(".", "init", "-q", "-b", "main", dir); err != nil {
		return "", err
	}
	const services = 2000
	body := func(svc, version int, file string) *string {
		var b strings.Builder
		fmt.Fprintf(&b, "# %s of service %d\n", file, svc)
		for i := range 24 {
			v := 0
			if i == version%24 {
				v = version
			}
			fmt.Fprintf(&b, "setting_%02d: %d\n", i, v*i+svc)
		}
		s := b.String()
		return &s
	}
	name := func(svc int, file string) string { return fmt.Sprintf("services/svc-%04d/%s", svc, file) }
	files := map[string]*string{}
	for svc := range services {
		for _, f := range []string{"base.yaml", "schema.cue", "env/prod.yaml", "env/staging.yaml", "region/eu.yaml", "files/app.conf"} {
			files[name(svc, f)] = body(svc, 0, f)
		}
	}
	var s script
	last := s.commit(files)
	for i := range 1999 {
		svc := i * 37 % 50
		last = s.commit(map[string]*string{name(svc, "base.yaml"): body(svc, i+1, "base.yaml")}, last)
	}
	if err := s.load(dir); err != nil {
		return "", err
	}
	if _, err := runGit(dir, "update-ref", "refs/heads/main", "refs/heads/"+s.ref(last)); err != nil {
		return "", err
	}
	if _, err := runGit(dir, "reset", "-q", "--hard"); err != nil {
		return "", err
	}
	_, err = runGit(dir, "repack", "-q", "-a", "-d")
	return dir, err
})

// cpu reports the processor time of an operation, which a busy machine does not stretch as it does the clock's.
func cpu(b *testing.B) func() {
	var from, to syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &from)
	return func() {
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &to)
		spent := to.Utime.Nano() + to.Stime.Nano() - from.Utime.Nano() - from.Stime.Nano()
		b.ReportMetric(float64(spent)/1e6/float64(b.N), "cpu-ms/op")
	}
}

func openFleet(b *testing.B) *source.Repo {
	b.Helper()
	dir, err := fleet()
	if err != nil {
		b.Fatal(err)
	}
	return open(b, dir)
}

// BenchmarkBlame walks all 2,000 commits: the oldest lines are the first commit's.
func BenchmarkBlame(b *testing.B) {
	openFleet(b)
	defer cpu(b)()
	for b.Loop() {
		r := openFleet(b)
		got, err := r.Blame(context.Background(), "main", "services/svc-0007/base.yaml", upTo(25))
		if err != nil || got[1].Subject != "commit 1" {
			b.Fatal(got[1], err)
		}
	}
}

// BenchmarkBlameNext is the second file of the same walk.
func BenchmarkBlameNext(b *testing.B) {
	r := openFleet(b)
	defer cpu(b)()
	for i := 0; b.Loop(); i++ {
		if _, err := r.Blame(context.Background(), "main", fmt.Sprintf("services/svc-%04d/base.yaml", i%2000), upTo(25)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWorkTree(b *testing.B) {
	r := openFleet(b)
	defer cpu(b)()
	for b.Loop() {
		if tree, err := r.WorkTree(); err != nil || len(tree.Files()) != 12000 {
			b.Fatal(err)
		}
	}
}

func BenchmarkCommit(b *testing.B) {
	r := openFleet(b)
	defer cpu(b)()
	for b.Loop() {
		if tree, err := r.Commit("HEAD"); err != nil || len(tree.Files()) != 12000 {
			b.Fatal(err)
		}
	}
}
