package distributor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// readReleases reads and verifies every release.
func (f *fsck) readReleases(ctx context.Context) error {
	infos, err := listAll(ctx, f.st, manifest.PrefixReleases)
	if err != nil {
		return err
	}
	for _, info := range infos {
		epoch, ok := manifest.ParseReleaseKey(info.Key)
		if !ok {
			f.problem(info.Key, nextWho, "is not named like a release")
			continue
		}
		data, ok, err := f.get(ctx, info.Key, manifest.MaxReleaseBytes, nextRestore)
		if err != nil {
			return err
		}
		if !ok {
			f.junk[epoch] = true
			continue
		}
		rel, err := checkRelease(f.keyring, f.storeID, epoch, data)
		if err != nil {
			f.junk[epoch] = true
			f.problem(info.Key, nextRestore+"; if it never was a release, leave it: the epoch is burnt, and publishing skips it", "%v", err)
			continue
		}
		f.report.Checked.Releases++
		f.releases[epoch] = rel
		f.epochs = append(f.epochs, epoch)
		f.report.Newest = max(f.report.Newest, epoch)
	}
	slices.Sort(f.epochs)
	return nil
}

// chain checks that each release follows the one before, and that what holds really stood.
func (f *fsck) chain(context.Context) error {
	stands := map[string]uint64{} // cohort → epoch of its statement
	var before *verified
	for _, epoch := range f.epochs {
		rel, key := f.releases[epoch], manifest.KeyRelease(epoch)
		var last uint64
		if before != nil {
			last = before.Epoch
		}
		var missing []string
		for e := last + 1; e < epoch; e++ {
			if len(missing) == 3 {
				missing = append(missing, "…")
				break
			}
			if !f.junk[e] {
				missing = append(missing, fmt.Sprint(e))
			}
		}
		if len(missing) > 0 {
			f.problem(key, nextRestore+": releases are never deleted", "epochs before it are missing: %s", strings.Join(missing, ", "))
		}
		switch {
		case before == nil && rel.Prev != "" && len(missing) == 0:
			f.problem(key, nextRestore, "follows a release that does not verify")
		case before != nil && rel.Prev != before.digest:
			f.problem(key, nextRestore, "does not follow release %d: the chain is broken between them", last)
		}
		for _, name := range sorted(rel.Policy.Cohorts) {
			if _, ok := rel.Cohorts[name]; !ok {
				f.problem(key, nextRestore, "declares cohort %s, and says nothing of what it gets", name)
			}
		}
		whole := len(missing) == 0 && (before == nil) == (rel.Prev == "")
		for _, name := range sorted(rel.Cohorts) {
			part := rel.Cohorts[name]
			if part.State == manifest.StateBuilt {
				stands[name] = epoch
				f.statement(key, name, part.Statement)
			} else if whole && part.Epoch != stands[name] {
				f.problem(key, nextRestore, "says that epoch %d stands for cohort %s, and epoch %d does", part.Epoch, name, stands[name])
			}
			for i := range part.Overridden {
				f.statement(key, name, &part.Overridden[i])
			}
		}
		before = rel
	}
	return nil
}

// statement notes the objects that a statement names. Its signature was verified with the release.
func (f *fsck) statement(key, cohort string, env *manifest.Envelope) {
	if env == nil {
		return
	}
	st, err := manifest.DecodeStatement(env.Payload)
	if err != nil { // verified with the release: cannot be
		f.problem(key, nextRestore, "has no readable statement for cohort %s", cohort)
		return
	}
	f.report.Checked.Statements++
	name := fmt.Sprintf("cohort %s in epoch %d", cohort, st.Epoch)
	f.named(st.Bundle.Object, name)
	for _, v := range st.Variants {
		f.named(v.Bundle.Object, fmt.Sprintf("%s in epoch %d", place(cohort, v.Host), st.Epoch))
	}
	if st.VariantsObject != nil {
		f.named(st.VariantsObject.Object, name+", the list of its variants")
	}
}

func (f *fsck) named(object, by string) {
	if !slices.Contains(f.objects[object], by) {
		f.objects[object] = append(f.objects[object], by)
	}
}

// bundles checks every bundle that a statement names against the statement, and the name of every other one.
func (f *fsck) bundles(ctx context.Context) error {
	checked := map[string]bool{}
	for _, epoch := range f.epochs {
		rel := f.releases[epoch]
		for _, name := range sorted(rel.Cohorts) {
			part := rel.Cohorts[name]
			envs := part.Overridden
			if part.Statement != nil {
				envs = append([]manifest.Envelope{*part.Statement}, envs...)
			}
			for _, env := range envs {
				st, err := manifest.DecodeStatement(env.Payload)
				if err != nil {
					continue // found by chain
				}
				if o := st.VariantsObject; o != nil {
					checked[manifest.KeyBundle(o.Object)] = true
					if st.Variants, err = f.variants(ctx, st); err != nil {
						return err
					}
				}
				for _, host := range append([]string{""}, hostsOf(st.Variants)...) {
					want, _ := bundleOf(st, host)
					checked[manifest.KeyBundle(want.Bundle.Object)] = true
					if err := f.bundle(ctx, st, want); err != nil {
						return err
					}
				}
			}
		}
	}
	infos, err := listAll(ctx, f.st, manifest.PrefixBundles)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if checked[info.Key] {
			continue
		}
		digest, _, err := digestObject(ctx, f.st, info.Key, bundle.MaxCompressed)
		switch {
		case errors.Is(err, store.ErrNotFound): // removed meanwhile
		case err != nil:
			if err := f.unreadable(info.Key, err); err != nil {
				return err
			}
		case manifest.KeyBundle(digest) != info.Key:
			f.notice(info.Key, nextRemove, "is an orphan, and its bytes are not what its name says")
		default:
			f.notice(info.Key, nextRemove, "is an orphan: no release names it")
		}
	}
	return nil
}

// hostsOf names the hosts of variants.
func hostsOf(list []manifest.Variant) []string {
	hosts := make([]string, len(list))
	for i, v := range list {
		hosts[i] = v.Host
	}
	return hosts
}

// variants reads the list of a statement's variants, and notes their bundles.
func (f *fsck) variants(ctx context.Context, st *manifest.Statement) ([]manifest.Variant, error) {
	key := manifest.KeyBundle(st.VariantsObject.Object)
	list, err := variants(ctx, f.st, st)
	switch {
	case errors.Is(err, store.ErrNotFound):
		f.problem(key, nextRestore, "is missing (%s)", strings.Join(f.objects[st.VariantsObject.Object], ", "))
		return nil, nil
	case errors.Is(err, ErrDamaged), errors.Is(err, manifest.ErrMalformed):
		f.problem(key, nextRestore, "%v (%s)", bare(err, key), strings.Join(f.objects[st.VariantsObject.Object], ", "))
		return nil, nil
	case err != nil:
		return nil, f.unreadable(key, err)
	}
	f.report.Checked.Bundles++
	for _, v := range list {
		f.named(v.Bundle.Object, fmt.Sprintf("%s in epoch %d", place(st.Cohort, v.Host), st.Epoch))
	}
	return list, nil
}

func (f *fsck) bundle(ctx context.Context, st *manifest.Statement, want manifest.Variant) error {
	key := manifest.KeyBundle(want.Bundle.Object)
	used := strings.Join(f.objects[want.Bundle.Object], ", ")
	r, _, err := f.st.Open(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		f.problem(key, nextRestore, "is missing: %s cannot be fetched", used)
		return nil
	case err != nil:
		return f.unreadable(key, err)
	}
	r.Close()
	plan, err := scan(ctx, f.st, key)
	var bad *bundle.Error
	switch {
	case err == nil:
		f.report.Checked.Bundles++
		if err := agrees(plan, st, want); err != nil {
			f.problem(key, nextRestore, "%v (%s)", bare(err, key), used)
			return nil
		}
		for _, service := range sorted(plan.Index.Services) {
			switch s := plan.Index.Services[service]; {
			case s.Epoch == 0 || s.Epoch > st.Epoch:
				f.problem(key, nextRestore, "says that service %s last changed in epoch %d, and is of epoch %d (%s)", service, s.Epoch, st.Epoch, used)
			case want.Evidence[service] == "":
				f.problem(key, nextRestore, "has service %s, for which its statement asks no evidence (%s)", service, used)
			}
		}
	case errors.As(err, &bad):
		f.problem(key, nextRestore, "%v (%s)", bad, used)
	case errors.Is(err, ErrDamaged):
		f.problem(key, nextRestore, "%v (%s)", bare(err, key), used)
	default:
		return f.unreadable(key, err)
	}
	return nil
}

// unreadable records trouble with one object as a fault of it, so that the rest is still checked. Only when the store itself is out of reach, or the caller gave
// up, there is nothing more to check.
func (f *fsck) unreadable(key string, err error) error {
	if errors.Is(err, store.ErrUnreachable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	f.problem(key, nextRestore, "cannot be read: %v", bare(err, key))
	return nil
}

// bare is an error's text without the key that the finding names anyway, and without the next step.
func bare(err error, key string) string {
	text := strings.TrimPrefix(err.Error(), key+": ")
	text, _, _ = strings.Cut(text, "; ")
	return text
}

// sources checks the stored trees. They are named by tree, so the newest release that names one says what it must be.
func (f *fsck) sources(ctx context.Context) error {
	want := map[string]manifest.Object{}
	for _, epoch := range f.epochs { // ascending: the newest stays
		if rel := f.releases[epoch]; rel.Kind == manifest.ReleaseCommit {
			want[manifest.KeySource(rel.Tree)] = rel.Source
		}
	}
	for _, key := range sorted(want) {
		o := want[key]
		digest, size, err := digestObject(ctx, f.st, key, o.Size)
		switch {
		case errors.Is(err, store.ErrNotFound):
			f.problem(key, "publish its commit again", "is missing")
		case err != nil:
			if err := f.unreadable(key, err); err != nil {
				return err
			}
		case digest != o.Object || size != o.Size:
			f.problem(key, nextRestore, "digest mismatch: it is not the tree that was released")
		default:
			f.report.Checked.Sources++
		}
	}
	infos, err := listAll(ctx, f.st, manifest.PrefixSources)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if _, ok := want[info.Key]; !ok {
			f.notice(info.Key, nextRemove, "is an orphan: no release names it")
		}
	}
	return nil
}

// readHeads reads and verifies the head of every cohort.
func (f *fsck) readHeads(ctx context.Context) error {
	infos, err := listAll(ctx, f.st, manifest.PrefixCohorts)
	if err != nil {
		return err
	}
	for _, info := range infos {
		cohort, ok := strings.CutSuffix(strings.TrimPrefix(info.Key, manifest.PrefixCohorts), ".json")
		if !ok || !manifest.ValidName(cohort) {
			f.problem(info.Key, nextWho, "is not named like a cohort's head")
			continue
		}
		data, ok, err := f.get(ctx, info.Key, manifest.MaxHeadBytes, nextRepublish)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		_, view, err := f.trust.AcceptHead(cohort, data, f.now)
		if err != nil {
			f.problem(info.Key, "remove it, and let "+refresh(cohort)+" restore its newest copy", "%v", err)
			continue
		}
		f.report.Checked.Heads++
		f.heads[cohort] = view
		if view.Stale {
			f.notice(info.Key, "publish again with --rollout=now", "is stale since %s: hosts keep what they have and say so", view.Manifest.FreshUntil.UTC().Format("2006-01-02T15:04:05Z"))
		}
	}
	return nil
}

// refresh is the command that restores a head.
func refresh(cohort string) string { return "`muster rollout refresh " + cohort + "`" }

// history checks the copies of heads, and that no head is behind its copies.
func (f *fsck) history(ctx context.Context) error {
	infos, err := listAll(ctx, f.st, manifest.PrefixHistory)
	if err != nil {
		return err
	}
	highest, copies := map[string]manifest.Mark{}, map[string]bool{}
	for _, info := range infos {
		cohort, name, _ := strings.Cut(strings.TrimPrefix(info.Key, manifest.PrefixHistory), "/")
		mark, err := manifest.ParseMark(strings.TrimSuffix(name, ".json"))
		if err != nil || !manifest.ValidName(cohort) || manifest.KeyHistory(cohort, mark) != info.Key {
			f.problem(info.Key, nextWho, "is not named like a copy of a head")
			continue
		}
		data, ok, err := f.get(ctx, info.Key, manifest.MaxHeadBytes, nextRestore)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		_, view, err := f.trust.AcceptHead(cohort, data, f.now)
		switch {
		case err != nil:
			f.problem(info.Key, nextRestore, "%v", err)
			continue
		case view.Mark() != mark:
			f.problem(info.Key, nextRestore, "is a copy of %s", view.Mark())
			continue
		}
		f.report.Checked.History++
		copies[info.Key] = true
		if mark.Compare(highest[cohort]) > 0 {
			highest[cohort] = mark
		}
	}
	for _, cohort := range sorted(highest) {
		head, key := f.heads[cohort], manifest.KeyHead(cohort)
		switch {
		case head == nil:
			if !slices.ContainsFunc(f.report.Problems, func(p Problem) bool { return p.Key == key }) {
				f.problem(key, refresh(cohort)+" restores its newest copy", "is missing, and there were %s of it", highest[cohort])
			}
		case head.Mark().Compare(highest[cohort]) < 0:
			// A head that moved on since readHeads is not behind.
			if data, ok, err := f.get(ctx, key, manifest.MaxHeadBytes, nextRepublish); err != nil {
				return err
			} else if _, again, err := f.trust.AcceptHead(cohort, data, f.now); ok && (err != nil || again.Mark().Compare(highest[cohort]) < 0) {
				f.problem(key, refresh(cohort)+" restores its newest copy", "went back: it is %s, and there is a copy of %s; hosts refuse it", head.Mark(), highest[cohort])
			}
		}
	}
	for _, cohort := range sorted(f.heads) {
		if key := manifest.KeyHistory(cohort, f.heads[cohort].Mark()); !copies[key] {
			f.notice(key, "", "is missing: the head of cohort %s has no copy", cohort)
		}
	}
	return nil
}

// headsAgree checks that every head assigns genuine releases, with the very statements that they carry.
func (f *fsck) headsAgree(context.Context) error {
	for _, cohort := range sorted(f.heads) {
		view, key := f.heads[cohort], manifest.KeyHead(cohort)
		for i, st := range view.Statements {
			rel := f.releases[st.Epoch]
			if rel == nil {
				f.problem(key, nextRestore, "names epoch %d, which is not a release of this store", st.Epoch)
				continue
			}
			part := rel.Cohorts[cohort]
			same := func(e manifest.Envelope) bool {
				return bytes.Equal(e.Payload, view.Manifest.Statements[i].Payload)
			}
			if !(part.Statement != nil && same(*part.Statement)) && !slices.ContainsFunc(part.Overridden, same) {
				f.problem(key, nextRestore, "carries a statement for epoch %d that release %d does not: one epoch, two contents", st.Epoch, st.Epoch)
			}
		}
	}
	if newest := f.releases[f.report.Newest]; newest != nil {
		for _, cohort := range sorted(newest.Cohorts) {
			if _, ok := f.heads[cohort]; !ok && newest.Cohorts[cohort].Epoch != 0 && !slices.ContainsFunc(f.report.Problems, func(p Problem) bool { return p.Key == manifest.KeyHead(cohort) }) {
				f.notice(manifest.KeyHead(cohort), nextRepublish, "is not there: cohort %s was never rolled out", cohort)
			}
		}
		for _, cohort := range sorted(f.heads) {
			if _, ok := newest.Cohorts[cohort]; !ok {
				f.notice(manifest.KeyHead(cohort), "", "is of a cohort that release %d no longer has", newest.Epoch)
			}
		}
	}
	return nil
}
