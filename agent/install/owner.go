package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os/user"
	"strconv"
	"strings"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/distributor/bundle"
)

// Ownership is whose the files of a service are to be: names or ids; "" leaves them as they come.
type Ownership struct{ Owner, Group string }

// Own says whose the files of services are, from the next release on. Names are looked up at each apply: a user may be made after the agent has started.
// Directories stay the agent's: who owns a directory could put other files into it.
func (r *Root) Own(services map[string]Ownership) { r.owners = services }

// ids looks a service's owner up.
func (o Ownership) ids() (durable.Owner, error) {
	own := durable.Owner{UID: durable.Keep, GID: durable.Keep}
	var err error
	if o.Owner != "" {
		own.UID, err = id(o.Owner, func(name string) (string, error) {
			u, err := user.Lookup(name)
			if err != nil {
				return "", err
			}
			return u.Uid, nil
		})
		if err != nil {
			return own, fmt.Errorf("owner: there is no user %s on this host; create it, or change owner: in the configuration", o.Owner)
		}
	}
	if o.Group != "" {
		own.GID, err = id(o.Group, func(name string) (string, error) {
			g, err := user.LookupGroup(name)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		})
		if err != nil {
			return own, fmt.Errorf("group: there is no group %s on this host; create it, or change group: in the configuration", o.Group)
		}
	}
	return own, nil
}

// maxID is the highest id that is not "nobody in particular".
const maxID = 1<<32 - 2

func id(name string, lookup func(string) (string, error)) (int, error) {
	n, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		var text string
		if text, err = lookup(name); err == nil {
			n, err = strconv.ParseUint(text, 10, 32)
		}
	}
	if err == nil && n > maxID {
		err = errors.New("out of range")
	}
	return int(n), err
}

// ownersOf looks up the owners of all services of a release, before one file is written.
func (r *Root) ownersOf(entries []bundle.Entry) (map[string]durable.Owner, error) {
	ids := map[string]durable.Owner{}
	for _, e := range entries {
		svc, _, _ := strings.Cut(e.Path, "/")
		o, ok := r.owners[svc]
		if _, done := ids[svc]; !ok || done || o == (Ownership{}) {
			continue
		}
		own, err := o.ids()
		if err != nil {
			return nil, &agent.Fault{Code: agent.CodeOwner, Err: fmt.Errorf("services.%s.%w", svc, err)}
		}
		ids[svc] = own
	}
	return ids, nil
}

func notOurs(err error, svc string) error {
	if errors.Is(err, fs.ErrPermission) {
		return &agent.Fault{Code: agent.CodeOwner, Err: fmt.Errorf("services.%s: the agent may not give files away; run it as root, or remove owner and group: %w", svc, err)}
	}
	return err
}

// strangers are the paths of a release whose owner is not the one that the configuration says. A name that cannot be looked up is told at the next apply.
func strangers(owners map[string]Ownership, found []file) []string {
	ids := map[string]durable.Owner{}
	for svc, o := range owners {
		if own, err := o.ids(); err == nil {
			ids[svc] = own
		}
	}
	var list []string
	for _, f := range found {
		svc, _, _ := strings.Cut(f.Path, "/")
		own, ok := ids[svc]
		if !ok || f.SHA256 == strange {
			continue
		}
		if own.UID != durable.Keep && own.UID != f.owner.UID || own.GID != durable.Keep && own.GID != f.owner.GID {
			list = append(list, f.Path)
		}
	}
	return list
}
