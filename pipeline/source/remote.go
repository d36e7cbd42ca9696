package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

var (
	ErrUnreachable = errors.New("remote not reachable") // worth another try
	ErrDenied      = errors.New("remote refused access")
)

// Bounds on what a remote may send.
const (
	maxAdvert = 256 << 20 // bytes of its list of refs
	maxPack   = 8 << 30   // bytes of one fetch
)

// remote is a repository elsewhere. go-git's packets and packs are spoken over our own connections: https with redirects and credentials
// under control, or the programs that git itself runs, ssh and git-upload-pack, so that the user's ssh configuration and agent count.
type remote struct {
	shown  string // for messages: holds no credentials
	http   *url.URL
	argv   []string // of the program that speaks upload-pack on its standard streams
	user   string
	token  func() (string, error)
	client *http.Client
}

var scpLike = regexp.MustCompile(`^(?:([A-Za-z0-9_][A-Za-z0-9_.-]*)@)?([A-Za-z0-9][A-Za-z0-9.-]*):([^:].*)$`)

// parseRemote reads https://…, ssh://…, user@host:path, file:///… and paths. A URL with credentials in it is refused, and never shown.
func parseRemote(s string, opts MirrorOptions) (*remote, error) {
	if s == "" || strings.HasPrefix(s, "-") || strings.ContainsFunc(s, func(c rune) bool { return c < 0x20 || c == 0x7f }) {
		return nil, errors.New("the remote's URL is empty or malformed")
	}
	r := &remote{shown: s, user: or(opts.User, "x-access-token"), token: opts.Token}
	if !strings.Contains(s, "://") {
		if m := scpLike.FindStringSubmatch(s); m != nil && !filepath.IsAbs(s) && !strings.HasPrefix(s, ".") {
			r.argv = sshCommand(m[1], m[2], "", m[3])
			return r, nil
		}
		return r.local(s)
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("the remote's URL is malformed") // the error would show it
	}
	if _, secret := u.User.Password(); secret || u.User != nil && u.Scheme != "ssh" {
		return nil, fmt.Errorf("credentials in the URL of %s: take them out, and give the token by a file or the environment", or(u.Host, "the remote"))
	}
	if u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return nil, errors.New("the remote's URL has a query or a fragment: leave it out")
	}
	switch u.Scheme {
	case "https", "http":
		if u.Host == "" {
			return nil, errors.New("the remote's URL names no host")
		}
		if u.Scheme == "http" && r.token != nil && !isLoopback(u.Hostname()) {
			return nil, fmt.Errorf("%s: a token would go over the network in clear: use https", s)
		}
		r.http = u
		t := http.DefaultTransport.(*http.Transport).Clone()
		r.client = &http.Client{Transport: t, CheckRedirect: sameOrigin}
		return r, nil
	case "ssh":
		if !regexp.MustCompile(`^[A-Za-z0-9\[][A-Za-z0-9.:\]-]*$`).MatchString(u.Host) || strings.HasPrefix(u.User.Username(), "-") {
			return nil, errors.New("the remote's URL names no host")
		}
		r.argv = sshCommand(u.User.Username(), strings.Trim(u.Hostname(), "[]"), u.Port(), u.Path)
		return r, nil
	case "file":
		if u.Host != "" && u.Host != "localhost" {
			return nil, fmt.Errorf("%s: a file URL names no host: write file:///path", s)
		}
		return r.local(u.Path)
	}
	return nil, fmt.Errorf("remote %s://…: %w: use https, ssh or file", u.Scheme, ErrUnsupported)
}

func (r *remote) local(path string) (*remote, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	r.argv = []string{"git-upload-pack", "--timeout=60", abs}
	if _, err := exec.LookPath(r.argv[0]); err != nil {
		r.argv = []string{"git", "upload-pack", "--timeout=60", abs}
	}
	return r, nil
}

// sshCommand asks for nothing on a terminal: nobody is there. The path is quoted for the shell on the other side. GIT_SSH_COMMAND counts as for git.
func sshCommand(user, host, port, path string) []string {
	argv := []string{"ssh"}
	if own := os.Getenv("GIT_SSH_COMMAND"); own != "" {
		argv = []string{"sh", "-c", own + ` "$@"`, "ssh"}
	}
	argv = append(argv, "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=15")
	if port != "" {
		argv = append(argv, "-p", port)
	}
	if user != "" {
		argv = append(argv, "-l", user)
	}
	return append(argv, "--", host, "git-upload-pack '"+strings.ReplaceAll(path, "'", `'\''`)+"'")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// sameOrigin follows a renamed repository, and nobody to another place: credentials were given for this one.
func sameOrigin(req *http.Request, via []*http.Request) error {
	from := via[0].URL
	switch {
	case req.URL.Host != from.Host || req.URL.Scheme != from.Scheme:
		return fmt.Errorf("it redirects to %s://%s: name that address if it is right", req.URL.Scheme, req.URL.Host)
	case req.Method != http.MethodGet || len(via) > 5:
		return errors.New("too many redirects")
	}
	return nil
}

// session is one conversation: the list of refs, then one request for a pack.
type session interface {
	advert(ctx context.Context) (*packp.AdvRefs, error)
	pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error)
	close()
}

func (r *remote) open(ctx context.Context) (session, error) {
	if r.http == nil {
		return r.start(ctx)
	}
	s := &httpSession{r: r, base: *r.http}
	if r.token != nil {
		token, err := r.token()
		if err != nil {
			return nil, fmt.Errorf("git token: %w", err)
		}
		if s.token = strings.TrimSpace(token); s.token == "" || strings.ContainsFunc(s.token, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
			return nil, errors.New("git token: it is empty or malformed")
		}
	}
	return s, nil
}

// fetch asks for the branch's tip, and for what have lacks of it; write gets the pack. Of an unknown tip known reports false.
func (r *remote) fetch(ctx context.Context, branch string, known func(plumbing.Hash) bool, have func() []plumbing.Hash, write func(io.Reader) error) (plumbing.Hash, error) {
	none := plumbing.ZeroHash
	s, err := r.open(ctx)
	if err != nil {
		return none, err
	}
	defer s.close()
	adv, err := s.advert(ctx)
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return none, fmt.Errorf("%w: the remote has no commits", ErrBranchGone)
	}
	if err != nil {
		return none, err
	}
	tip, ok := adv.References["refs/heads/"+branch]
	switch {
	case !ok:
		return none, ErrBranchGone
	case tip.IsZero():
		return none, fmt.Errorf("%w: its list of branches is malformed", ErrUnreachable)
	case len(adv.Shallows) > 0:
		return none, fmt.Errorf("%w: the remote is one itself; name the repository that it was cloned from", ErrShallow)
	case known(tip):
		return tip, nil
	}
	transport.FilterUnsupportedCapabilities(adv.Capabilities)
	req := packp.NewUploadPackRequestFromCapabilities(adv.Capabilities)
	if adv.Capabilities.Supports(capability.NoProgress) {
		if err := req.Capabilities.Set(capability.NoProgress); err != nil {
			return none, err
		}
	}
	req.Wants = []plumbing.Hash{tip}
	req.Haves = have()
	body, err := s.pack(ctx, req)
	if err != nil {
		return none, err
	}
	defer body.Close()
	resp := packp.NewUploadPackResponse(req)
	if err := resp.Decode(body); err != nil {
		return none, r.broken(ctx, err)
	}
	var pack io.Reader = resp
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		pack = sideband.NewDemuxer(sideband.Sideband64k, resp)
	case req.Capabilities.Supports(capability.Sideband):
		pack = sideband.NewDemuxer(sideband.Sideband, resp)
	}
	read := &remoteReader{Reader: io.LimitReader(pack, maxPack)}
	if err := write(read); err != nil {
		if read.err != nil {
			return none, r.broken(ctx, read.err)
		}
		return none, fmt.Errorf("store the pack: %w", err)
	}
	return tip, nil
}

// remoteReader remembers who failed: the remote, or our own disk.
type remoteReader struct {
	io.Reader
	err error
}

func (r *remoteReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// broken is a conversation that ended too early.
func (r *remote) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %s", ErrUnreachable, clean(err.Error()))
}

// decodeAdvert reads the list of refs.
func (r *remote) decodeAdvert(ctx context.Context, rd io.Reader) (*packp.AdvRefs, error) {
	var head bytes.Buffer
	adv := packp.NewAdvRefs()
	err := adv.Decode(io.TeeReader(io.LimitReader(rd, maxAdvert), &limited{&head, 4096}))
	switch {
	case err == nil && adv.IsEmpty(), errors.Is(err, packp.ErrEmptyAdvRefs):
		return nil, transport.ErrEmptyRemoteRepository
	case err == nil:
		return adv, nil
	case bytes.Contains(head.Bytes(), []byte("object-format=sha256")):
		return nil, fmt.Errorf("extension objectformat=sha256: %w: %s", ErrUnsupported, extensionAdvice["objectformat"])
	}
	var told *pktline.ErrorLine
	if errors.As(err, &told) {
		return nil, fmt.Errorf("%w: %s", ErrDenied, clean(told.Text))
	}
	return nil, r.broken(ctx, err)
}

// limited keeps a beginning.
type limited struct {
	b *bytes.Buffer
	n int
}

func (l *limited) Write(p []byte) (int, error) {
	l.b.Write(p[:min(len(p), l.n-min(l.n, l.b.Len()))])
	return len(p), nil
}

type httpSession struct {
	r     *remote
	base  url.URL
	token string
}

func (s *httpSession) close() {}

func (s *httpSession) do(ctx context.Context, method, path, query, kind string, body io.Reader) (*http.Response, error) {
	u := s.base
	u.Path, u.RawPath, u.RawQuery = strings.TrimSuffix(u.Path, "/")+path, "", query
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "git/muster") // some forges answer other clients with a page
	if body != nil {
		req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	}
	if s.token != "" {
		req.SetBasicAuth(s.r.user, s.token)
	}
	res, err := s.r.client.Do(req)
	if err != nil {
		return nil, s.hide(s.r.broken(ctx, err))
	}
	if err := status(res, kind, s.token != ""); err != nil {
		res.Body.Close()
		return nil, err
	}
	return res, nil
}

func status(res *http.Response, kind string, token bool) error {
	switch res.StatusCode {
	case http.StatusOK:
		if got := res.Header.Get("Content-Type"); got != kind {
			return fmt.Errorf("%w: it answers with %q, not as a git server does; is the URL that of a repository?", ErrDenied, clean(got))
		}
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		if token {
			return fmt.Errorf("%w: %s: it does not take this token; does it have the right to read the repository?", ErrDenied, clean(res.Status))
		}
		return fmt.Errorf("%w: %s: it wants a token", ErrDenied, clean(res.Status))
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%w: %s: no such repository, or these credentials may not see it", ErrDenied, clean(res.Status))
	}
	return fmt.Errorf("%w: it answers %s", ErrUnreachable, clean(res.Status))
}

// hide makes sure of what should be so anyway.
func (s *httpSession) hide(err error) error {
	if s.token != "" && strings.Contains(err.Error(), s.token) {
		return ErrUnreachable
	}
	return err
}

func (s *httpSession) advert(ctx context.Context) (*packp.AdvRefs, error) {
	const path = "/info/refs"
	res, err := s.do(ctx, http.MethodGet, path, "service=git-upload-pack", "application/x-git-upload-pack-advertisement", nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if to := res.Request.URL; strings.HasSuffix(to.Path, path) {
		s.base.Path = strings.TrimSuffix(to.Path, path) // renamed
	}
	return s.r.decodeAdvert(ctx, res.Body)
}

func (s *httpSession) pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error) {
	var b bytes.Buffer
	if err := encode(&b, req, false); err != nil {
		return nil, err
	}
	res, err := s.do(ctx, http.MethodPost, "/git-upload-pack", "", "application/x-git-upload-pack-result", &b)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

func encode(w io.Writer, req *packp.UploadPackRequest, flush bool) error {
	if err := req.UploadRequest.Encode(w); err != nil {
		return err
	}
	if err := req.UploadHaves.Encode(w, flush); err != nil {
		return err
	}
	return pktline.NewEncoder(w).EncodeString("done\n")
}

// pipeSession speaks with a program.
type pipeSession struct {
	r      *remote
	cmd    *exec.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	out    io.ReadCloser
	said   *lastLine
	asked  bool
}

func (r *remote) start(ctx context.Context) (session, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &pipeSession{r: r, cancel: cancel, said: &lastLine{}}
	s.cmd = exec.CommandContext(ctx, r.argv[0], r.argv[1:]...)
	s.cmd.Stderr = s.said
	s.cmd.WaitDelay = 5 * time.Second // a grandchild may hold on to the pipes
	var err error
	if s.in, err = s.cmd.StdinPipe(); err == nil {
		if s.out, err = s.cmd.StdoutPipe(); err == nil {
			err = s.cmd.Start()
		}
	}
	if err != nil {
		ended := ctx.Err() != nil
		cancel()
		if ended {
			return nil, r.broken(ctx, err)
		}
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("the program %s is not installed, and %s needs it", r.argv[0], r.shown)
		}
		return nil, fmt.Errorf("run %s: %w", r.argv[0], err)
	}
	return s, nil
}

// close lets a program that was asked for nothing end as it should, and ends any other.
func (s *pipeSession) close() {
	if !s.asked {
		_ = pktline.NewEncoder(s.in).Flush()
		_ = s.in.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(s.out, 1<<20))
	}
	s.cancel()
	_ = s.cmd.Wait()
}

func (s *pipeSession) advert(ctx context.Context) (*packp.AdvRefs, error) {
	adv, err := s.r.decodeAdvert(ctx, s.out)
	if err == nil || errors.Is(err, transport.ErrEmptyRemoteRepository) || errors.Is(err, ErrUnsupported) {
		return adv, err
	}
	s.asked = true // there is nobody to take leave of
	_ = s.in.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(s.out, 1<<20))
	_ = s.cmd.Wait() // its last words are there then
	if said := s.said.String(); said != "" && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnreachable, clean(said))
	}
	return nil, err
}

func (s *pipeSession) pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error) {
	s.asked = true
	if err := encode(s.in, req, true); err != nil {
		return nil, s.r.broken(ctx, err)
	}
	return s.out, s.in.Close()
}

// lastLine keeps the last line that a program says on its standard error, which is mostly the reason.
type lastLine struct {
	mu   sync.Mutex
	text []byte
}

func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const keep = 4096
	l.text = append(l.text, p...)
	l.text = l.text[max(0, len(l.text)-keep):]
	return len(p), nil
}

func (l *lastLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(l.text)), "\n")
	for _, line := range lines {
		if _, fatal, ok := strings.Cut(line, "fatal: "); ok {
			return fatal
		}
	}
	return lines[len(lines)-1]
}
