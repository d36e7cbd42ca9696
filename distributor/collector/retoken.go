package collector

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"
)

// Who may speak to a collector changes while it runs: the tokens file is read again with every poll, and when somebody asks for it. A file that cannot be read leaves everybody
// as before: a slip of the pen must not lock a fleet out.

// ReadTokens has the tokens file read at once: what SIGHUP asks for.
func (c *Collector) ReadTokens() { wake(c.retoken) }

// followTokens reads the tokens file until ctx ends.
func (c *Collector) followTokens(ctx context.Context) {
	trouble := ""
	for asked := false; ; {
		switch {
		case c.cfg.TokensFile != "":
			trouble = c.readTokens(asked, trouble)
		case asked:
			c.log.Info("asked to read the tokens file again: there is none, so nothing changes")
		}
		t := time.NewTimer(c.cfg.Poll)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-c.retoken:
			t.Stop()
			asked = true
		case <-t.C:
			asked = false
		}
	}
}

// readTokens reads the tokens file, and ends what those wait for who are not in it any more. It says what changed, and if somebody asked, also that nothing did. The trouble that
// it had before is said once.
func (c *Collector) readTokens(asked bool, before string) (trouble string) {
	next, err := LoadTokens(c.cfg.TokensFile)
	if err != nil {
		if asked || err.Error() != before {
			c.log.Error("the tokens file cannot be read: the tokens that it had before still count", "err", err)
		}
		return err.Error()
	}
	same := reflect.DeepEqual(c.tokens.Load(), next)
	if !same || asked || before != "" {
		c.log.Info("tokens file read again", "path", c.cfg.TokensFile, "agents", len(next.Agents), "people", len(next.People), "changed", !same)
	}
	if !same {
		c.tokens.Store(next)
		c.revoke()
	}
	return ""
}

// errRevoked ends a request that stays for long when its token is taken away, or may something else by now.
var errRevoked = errors.New("the token was taken out of the tokens file, or changed there")

// staying are the requests that stay for long, so that they end with their token.
type staying struct {
	mu   sync.Mutex
	list map[*stay]bool
}

type stay struct {
	request *http.Request
	who     caller
	end     context.CancelCauseFunc
}

// stays gives a request an end that comes with that of its token. done is called when it is answered.
func (c *Collector) stays(r *http.Request, who caller) (_ *http.Request, done func()) {
	ctx, end := context.WithCancelCause(r.Context())
	s := &stay{r, who, end}
	c.staying.mu.Lock()
	if c.staying.list == nil {
		c.staying.list = map[*stay]bool{}
	}
	c.staying.list[s] = true
	c.staying.mu.Unlock()
	c.endIfRevoked(s) // the file may have been read since the token was looked up
	return r.WithContext(ctx), func() {
		c.staying.mu.Lock()
		delete(c.staying.list, s)
		c.staying.mu.Unlock()
		end(nil)
	}
}

// revoke ends the requests whose token is not what it was.
func (c *Collector) revoke() {
	c.staying.mu.Lock()
	defer c.staying.mu.Unlock()
	for s := range c.staying.list {
		c.endIfRevoked(s)
	}
}

func (c *Collector) endIfRevoked(s *stay) {
	if now, known := c.identify(s.request); !known || now.agent != s.who.agent || now.person != s.who.person || !slices.Equal(now.cohorts, s.who.cohorts) {
		s.end(errRevoked)
	}
}
