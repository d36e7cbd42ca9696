package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/install"
)

// trouble is what `muster-agent verify` says about the links.
func (r *rig) trouble() []string {
	r.t.Helper()
	in, _, _, err := install.Verify(r.t.Context(), r.root)
	if err != nil {
		r.t.Fatal(err)
	}
	if in == nil {
		return nil
	}
	return install.LinkTrouble(r.root, r.cfg.LinksOf(in))
}

// refused does one full sync and demands that it is not confirmed, because of a link, and that verify agrees where anything is installed.
func (r *rig) refused(says ...string) {
	r.t.Helper()
	res, err := r.once()
	if err == nil || res.Confirmed || res.Code != agent.CodeLink {
		r.t.Errorf("%+v, %v", res, err)
		return
	}
	for _, text := range says {
		if !strings.Contains(res.Reason, text) {
			r.t.Errorf("%q is not in %q", text, res.Reason)
		}
	}
	if res.Running > 0 && len(r.trouble()) == 0 {
		r.t.Error("verify finds nothing")
	}
}

// aliased is a directory and a link to it.
func aliased(t *testing.T) (dir, alias string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, alias = filepath.Join(base, "etc"), filepath.Join(base, "etc2")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink("etc", alias)); err != nil {
		t.Fatal(err)
	}
	return dir, alias
}

// Two links at one place are refused, whatever directory alias they are spelled through: each would take the other's place, and both would look right.
func TestTwoLinksAtOnePlace(t *testing.T) {
	r := newRig(t, "checkout", "search")
	etc, alias := aliased(t)
	one, two := filepath.Join(etc, "app.yaml"), filepath.Join(alias, "app.yaml")
	links := func(name, path, file string) {
		r.edit(name, func(s *agent.ServiceConfig) { s.Links = map[string]string{path: file} })
	}
	links("checkout", one, "checkout.yaml")
	links("search", two, "search.yaml")
	r.world.Release(files{"checkout/checkout.yaml": "1", "search/search.yaml": "1"})
	r.world.Assign(1)
	r.refused("link of search: "+two+" is the same place as "+one, "a link of checkout; keep one of them")
	if left := ls(t, etc); len(left) > 0 {
		t.Error(left)
	}
	// Where the release runs already likewise: the one keeps its place, the other is not confirmed.
	r.edit("search", func(s *agent.ServiceConfig) { s.Links = nil })
	r.confirmed(1)
	links("search", two, "search.yaml")
	for range 2 {
		r.refused("search: link of search: " + two + " is the same place as " + one)
		r.linked(one, "checkout", "checkout.yaml")
	}
	// The same link in another spelling is no other link: it is not removed with the old spelling.
	r.edit("search", func(s *agent.ServiceConfig) { s.Links = nil })
	links("checkout", two, "checkout.yaml")
	r.confirmed(1)
	r.linked(one, "checkout", "checkout.yaml")
	if list := r.trouble(); len(list) > 0 {
		t.Error(list)
	}
}

// What is confirmed is what verify finds good: a file that is not in the release, and a link that a reload moved, are not.
func TestConfirmedLinksStand(t *testing.T) {
	r := newRig(t, "checkout")
	path := filepath.Join(t.TempDir(), "checkout.yaml")
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = map[string]string{path: "checkout.yaml"} })
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = map[string]string{path: "more.yaml"} })
	r.refused(path + ": checkout/more.yaml is not in the release")
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Links = map[string]string{path: "checkout.yaml"}
		s.Reload = append([]string{"sh", "-c", `rm -f "$0" && exec "$@"`, path}, s.Reload...)
	})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	if res, _ := r.once(); res.Running != 2 || res.Confirmed || res.Code != agent.CodeLink || !strings.Contains(res.Reason, path+": the link is missing") {
		t.Errorf("%+v", res)
	}
	r.confirmed(2)
}

// No spelling lets a link take the place of the root, of what is in it, or of what leads to it.
func TestLinkAtTheRoot(t *testing.T) {
	for name, spell := range map[string]func(etc, alias string) (root, link, says string){
		"through an alias": func(etc, alias string) (string, string, string) {
			return filepath.Join(etc, "root"), filepath.Join(alias, "root", "current"), alias + "/root leads into " + etc + "/root"
		},
		"deeper": func(etc, alias string) (string, string, string) {
			return filepath.Join(alias, "root"), filepath.Join(etc, "root", "tmp", "x"), etc + "/root/tmp leads into " + alias + "/root"
		},
		"a link that leads to the root": func(etc, alias string) (string, string, string) {
			return filepath.Join(alias, "root"), alias, ""
		},
		"the alias of the alias": func(etc, alias string) (string, string, string) {
			other := filepath.Join(etc, "up")
			if err := os.Symlink("..", other); err != nil {
				panic(err)
			}
			return filepath.Join(alias, "root"), filepath.Join(other, "etc2"), other + "/etc2 is on the way to " + alias + "/root"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			etc, alias := aliased(t)
			var path, says string
			r.root, path, says = spell(etc, alias)
			r.cfg.Root = r.root
			r.cfg.Services = map[string]agent.ServiceConfig{"checkout": {}}
			r.world.Release(files{"checkout/checkout.yaml": "1"}, agenttest.Grade("disk"))
			r.world.Assign(1)
			r.confirmed(1)
			r.cfg.Services["checkout"] = agent.ServiceConfig{Links: map[string]string{path: "checkout.yaml"}, TakeOver: true}
			if says == "" {
				if err := r.cfg.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), "root "+r.root+" is below "+path) {
					t.Error(err)
				}
				return
			}
			for range 2 {
				r.refused(says)
				r.sound(1)
			}
			r.world.Release(files{"checkout/checkout.yaml": "2"}, agenttest.Grade("disk"))
			r.world.Assign(2)
			r.refused(says)
			r.sound(1)
		})
	}
}

// A link through another one would come to lie in the release once that is made, though what stands there now leads elsewhere.
func TestLinkThroughAnother(t *testing.T) {
	r := newRig(t)
	etc, alias := aliased(t)
	whole := filepath.Join(etc, "all")
	if err := errors.Join(os.Mkdir(filepath.Join(etc, "old"), 0o755), os.Symlink("old", whole)); err != nil {
		t.Fatal(err)
	}
	more := filepath.Join(alias, "all", "two.yaml")
	r.cfg.Services = map[string]agent.ServiceConfig{
		"checkout": {Links: map[string]string{whole: "."}, TakeOver: true},
		"two":      {Links: map[string]string{more: "two.yaml"}},
	}
	r.world.Release(files{"checkout/checkout.yaml": "1", "two/two.yaml": "1"}, agenttest.Grade("disk"))
	r.world.Assign(1)
	r.refused("link of two: " + more + " leads through " + whole + ", a link of checkout")
	if to, err := os.Readlink(whole); to != "old" {
		t.Errorf("%q, %v", to, err)
	}
}

// A link that begins as the agent's own do and leads elsewhere is somebody else's: neither replaced nor removed.
func TestLinkThatLeadsOut(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "checkout.yaml")
	out := r.root + "/current/../../secret"
	put := func() {
		t.Helper()
		os.Remove(path)
		if err := os.Symlink(out, path); err != nil {
			t.Fatal(err)
		}
	}
	put()
	r.cfg.Services = map[string]agent.ServiceConfig{"checkout": {Links: map[string]string{path: "checkout.yaml"}}}
	r.world.Release(files{"checkout/checkout.yaml": "1"}, agenttest.Grade("disk"))
	r.world.Assign(1)
	r.refused(path + " is somebody else's file")
	os.Remove(path)
	r.confirmed(1)
	put()
	r.refused(path + " is somebody else's file")
	r.cfg.Services["checkout"] = agent.ServiceConfig{}
	r.confirmed(1)
	if to, err := os.Readlink(path); to != out {
		t.Errorf("%q, %v", to, err)
	}
}
