package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/pipeline/source"
)

// remote follows a branch of another repository, by fetching it into a cache. The caller closes it.
func (p *publishing) remote(ctx context.Context) (*upstream, error) {
	w := p.watch
	opts := source.MirrorOptions{Warn: func(text string) { fmt.Fprintf(p.errOut, "muster: warning: %s\n", cli.Printable(text)) }}
	if w.tokenFile != "" {
		opts.Token = func() (string, error) { return readToken(w.tokenFile) }
		if _, err := opts.Token(); err != nil {
			return nil, err
		}
	}
	m, err := source.OpenMirror(ctx, w.cache, w.remote, w.branch, opts)
	if errors.Is(err, source.ErrUnsupported) {
		return nil, cli.Fail(cli.Usage, "", "%w", err) // the address, not a commit
	}
	if err != nil {
		return nil, err
	}
	return &upstream{
		name: fmt.Sprintf("branch %s of %s", w.branch, shownURL(w.remote)),
		tip:  m.Fetch,
		repo: func(context.Context) (*source.Repo, error) {
			if r := m.Repo(); r != nil {
				return r, nil
			}
			return nil, errors.New("nothing was fetched yet")
		},
		close: m.Close,
	}, nil
}

// readToken reads a token of one line.
func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the remote's token: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return "", fmt.Errorf("read the remote's token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", cli.Fail(cli.Usage, "put the token, and nothing else, into the file", "%s does not hold a token", path)
	}
	return token, nil
}

// shownURL is a URL without its user and password.
func shownURL(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return url
	}
	host, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndex(host, "@"); at >= 0 {
		host = host[at+1:]
	}
	return scheme + "://" + host + "/" + path
}
