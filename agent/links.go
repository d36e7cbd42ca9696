package agent

import (
	"errors"
	"fmt"
	"strings"
)

// Link is a symbolic link outside the root that leads to a file of a service in whatever release is current.
type Link struct {
	Path     string // where it is
	Service  string
	File     string // below the service's directory; "." is the directory itself
	TakeOver bool   // what somebody else put there is moved aside
}

// Linker keeps links. agent/install is the real one.
type Linker interface {
	// Clashes says which of the links cannot be at all, by path: two at one place, however it is spelled, one through another, one in the agent's own directory
	// or on the way to it. It changes nothing.
	Clashes(links []Link) map[string]error
	// CheckLink says what would keep Link from working while the release in dir is current. It changes nothing.
	CheckLink(l Link, dir string) error
	// Link makes the link, durably, if it is not as it should be, and says whether it had to. There is no moment without either what was there or the link.
	Link(l Link) (made bool, err error)
	// Stands says what is wrong with a link, if it is not as it should be.
	Stands(l Link) error
	// Unlink removes a link that is not wanted any more; what is not the agent's own stays, and what is the place of a wanted one.
	Unlink(path string, wanted []Link) (removed bool, err error)
}

// LinksOf are the links that the configuration wants for a release, in order.
func (c Config) LinksOf(in *Installed) []Link {
	var list []Link
	for _, name := range sorted(in.Services) {
		cfg := c.Services[name]
		for _, path := range sorted(cfg.Links) {
			list = append(list, Link{Path: path, Service: name, File: cfg.Links[path], TakeOver: cfg.TakeOver})
		}
	}
	return list
}

// checkLinks is before the swap: a release is not installed where its service would go on reading somebody else's file.
func (a *Agent) checkLinks(s *Staged) error {
	links := a.cfg.LinksOf(&s.Installed)
	if len(links) == 0 {
		return nil
	}
	clashes := a.opts.Linker.Clashes(links)
	for _, l := range links {
		err := clashes[l.Path]
		if err == nil {
			err = a.opts.Linker.CheckLink(l, s.Dir)
		}
		if err != nil {
			return &Fault{Code: CodeLink, Err: fmt.Errorf("link of %s: %w", l.Service, err)}
		}
	}
	return nil
}

// noteLinks notes the links that a release will have before they are made, so that the agent knows for good which are its own.
func (a *Agent) noteLinks(in *Installed) (news bool) {
	for _, l := range a.cfg.LinksOf(in) {
		if a.st.Links[l.Path] != l.Service {
			if a.st.Links == nil {
				a.st.Links = map[string]string{}
			}
			a.st.Links[l.Path] = l.Service
			a.dirty, news = true, true
		}
	}
	return news
}

// keepLinks makes the links of the release that is current what they should be, and removes those that nothing asks for any more.
func (a *Agent) keepLinks() error {
	a.linkErrs = map[string]error{}
	if a.opts.Linker == nil || a.cur == nil || a.cur.Content == "" {
		return nil
	}
	if a.noteLinks(a.cur) {
		if err := a.persist(); err != nil {
			return err
		}
	}
	var errs []error
	wanted := map[string]bool{}
	links := a.cfg.LinksOf(a.cur)
	clashes := a.opts.Linker.Clashes(links)
	for _, l := range links {
		wanted[l.Path] = true
		made, err := false, clashes[l.Path]
		if err == nil {
			made, err = a.opts.Linker.Link(l)
		}
		switch {
		case err != nil:
			errs = append(errs, a.linkFault(l, err))
		case made:
			a.log.Info("link made", "service", l.Service, "path", l.Path)
		}
	}
	for _, path := range sorted(a.st.Links) {
		if wanted[path] {
			continue
		}
		removed, err := a.opts.Linker.Unlink(path, links)
		if err != nil {
			a.log.Warn("link not removed", "path", path, "err", err)
			continue
		}
		if removed {
			a.log.Info("link removed", "service", a.st.Links[path], "path", path)
		}
		delete(a.st.Links, path)
		a.dirty = true
	}
	if t := a.st.Trial; t == nil || !t.Back { // a way back goes on, whatever the earlier release lacks
		errs = append(errs, a.recheckLinks())
	}
	return errors.Join(errs...)
}

// recheckLinks looks at every link once more, after all that could have moved one: what is confirmed is what `muster-agent verify` finds good.
func (a *Agent) recheckLinks() error {
	if a.opts.Linker == nil || a.cur == nil || a.cur.Content == "" {
		return nil
	}
	var errs []error
	for _, l := range a.cfg.LinksOf(a.cur) {
		if a.linkErrs[l.Service] != nil {
			continue // said already
		}
		if err := a.opts.Linker.Stands(l); err != nil {
			errs = append(errs, a.linkFault(l, err))
		}
	}
	return errors.Join(errs...)
}

// linkFault notes the first trouble with a service's links.
func (a *Agent) linkFault(l Link, err error) error {
	err = &Fault{Code: CodeLink, Err: fmt.Errorf("link of %s: %w", l.Service, err)}
	if a.linkErrs[l.Service] == nil {
		a.linkErrs[l.Service] = err
	}
	return err
}

// linkTrouble is the first link that is not as it should be.
func (a *Agent) linkTrouble() error {
	for _, name := range sorted(a.linkErrs) {
		return a.linkErrs[name]
	}
	return nil
}

// summary is what a release would change, in one sentence.
func (s *Staged) summary() string {
	var parts []string
	for _, name := range s.Changed {
		c := s.Files[name]
		parts = append(parts, fmt.Sprintf("%s (%s)", name, count(len(c.Added)+len(c.Changed)+len(c.Removed), "file")))
	}
	if len(parts) == 0 {
		return "the files of no service"
	}
	if more := len(parts) - 10; more > 0 {
		parts = append(parts[:10], count(more, "more service"))
	}
	return strings.Join(parts, ", ")
}
