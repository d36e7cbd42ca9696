package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/pipeline/forge"
)

// listen takes webhooks as hints to look at the branch, if that is asked for. What is lost, doubled or replayed changes nothing: the branch is looked at by itself too.
func (p *publishing) listen(ctx context.Context) (wake <-chan struct{}, stop func(), err error) {
	if p.watch.hook == "" {
		return nil, func() {}, nil
	}
	secret, err := readForgeToken(p.watch.hookSecret)
	if err != nil {
		return nil, nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", p.watch.hook)
	if err != nil {
		return nil, nil, cli.Fail(cli.Usage, "give an address of this machine as --webhook", "listen for webhooks: %w", err)
	}
	hints := make(chan struct{}, 1)
	srv := &http.Server{Handler: forge.Hook([]byte(secret), hints), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(p.errOut, "muster: warning: no webhooks any more: %s; the branch is looked at every %s\n", cli.Printable(err.Error()), p.watch.every)
		}
	}()
	p.say(event{GitHub: "listening for webhooks on " + l.Addr().String()}, "listening for webhooks on %s", l.Addr())
	return hints, func() {
		srv.Close()
		<-done
	}, nil
}
