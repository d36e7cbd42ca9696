package demo

import (
	"context"
	"io"
	"net"
	"sync"

	"golang.org/x/sync/errgroup"
)

// link is the network between one host and the collector: it can be cut.
type link struct {
	to string // host:port of the collector

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

// serve carries connections until ctx ends.
func (l *link) serve(ctx context.Context, ln net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() {
		ln.Close()
		l.drop()
	})()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			return group.Wait()
		}
		group.Go(func() error {
			l.carry(ctx, conn)
			return nil
		})
	}
}

// carry joins one connection with the collector until either side ends it, or the link is cut.
func (l *link) carry(ctx context.Context, from net.Conn) {
	defer from.Close()
	var d net.Dialer
	to, err := d.DialContext(ctx, "tcp", l.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !l.enter(ctx, from, to) {
		return
	}
	defer l.leave(from, to)
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(from, to)
		from.Close()
	}()
	_, _ = io.Copy(to, from)
	to.Close()
	<-back
}

func (l *link) enter(ctx context.Context, conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut || ctx.Err() != nil {
		return false
	}
	if l.conns == nil {
		l.conns = map[net.Conn]bool{}
	}
	for _, c := range conns {
		l.conns[c] = true
	}
	return true
}

func (l *link) leave(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		delete(l.conns, c)
	}
}

// drop ends what is open.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}

// set cuts the link, or mends it.
func (l *link) set(cut bool) {
	l.mu.Lock()
	l.cut = cut
	l.mu.Unlock()
	if cut {
		l.drop()
	}
}
