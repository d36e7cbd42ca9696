package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

type coded struct{ code int }

func (c coded) Error() string { return "coded" }
func (c coded) ExitCode() int { return c.code }
func (c coded) Hint() string  { return "its own hint" }

func TestCodeOf(t *testing.T) {
	mine := errors.New("history was rewritten")
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, OK},
		{errors.New("any"), Local},
		{Fail(No, "", "no: %w", store.ErrUnreachable), No},
		{fmt.Errorf("wrapped: %w", Fail(Usage, "", "x")), Usage},
		{fmt.Errorf("get head: %w", store.ErrUnreachable), Unreachable},
		{fmt.Errorf("put: %w", store.ErrAmbiguous), Unreachable},
		{fmt.Errorf("put: %w", store.ErrDenied), Unreachable},
		{fmt.Errorf("put: %w", store.ErrConflict), Conflict},
		{fmt.Errorf("put: %w", store.ErrExists), Conflict},
		{fmt.Errorf("put: %w", store.ErrReadOnly), Usage},
		{manifest.ErrSignature, NotTrusted},
		{manifest.ErrOrder, NotTrusted},
		{manifest.ErrForeign, NotTrusted},
		{manifest.ErrEquivocation, NotTrusted},
		{manifest.ErrMalformed, NotTrusted},
		{manifest.ErrKeyring, NotTrusted},
		{manifest.ErrNoAssignment, NotTrusted},
		{&bundle.Error{Code: "unsafe path", Err: errors.New("x")}, NotTrusted},
		{fmt.Errorf("x: %w", fs.ErrPermission), Local},
		{fmt.Errorf("x: %w", context.Canceled), Interrupted},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), Unreachable},
		{fmt.Errorf("x: %w", coded{NotTrusted}), NotTrusted},
		{coded{0}, Local},
		{fmt.Errorf("x: %w", mine), Conflict},
	} {
		if got := CodeOf(tt.err, Rule{Is: mine, Code: Conflict}); got != tt.want {
			t.Errorf("CodeOf(%v) = %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestPrintError(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{Exit(No), ""},
		{Fail(Usage, "try --help", "unknown flag --x"), "muster: error: unknown flag --x\nmuster: hint: try --help\n"},
		{errors.New("plain"), "muster: error: plain\n"},
		{errors.New("two\nlines\n\x1b[31mred"), "muster: error: two; lines; ?[31mred\n"},
		{fmt.Errorf("wait: %w", coded{5}), "muster: error: wait: coded\nmuster: hint: its own hint\n"},
		{fmt.Errorf("put: %w", store.ErrReadOnly), "muster: error: put: store is read-only\nmuster: hint: give a store that can be written: file:// or s3://\n"},
	} {
		var b bytes.Buffer
		PrintError(&b, "muster", tt.err)
		if b.String() != tt.want {
			t.Errorf("PrintError(%v)\n got %q\nwant %q", tt.err, b.String(), tt.want)
		}
	}
}

func TestRunInterrupted(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(ctx context.Context) error
		code int
		text string
	}{
		{"broken off", func(ctx context.Context) error { return fmt.Errorf("wait: %w", ctx.Err()) }, Interrupted, "muster: error: interrupted\n"},
		{"a daemon that ends well", func(context.Context) error { return nil }, OK, ""},
		{"another error counts", func(context.Context) error { return Fail(No, "", "not confirmed") }, No, "muster: error: not confirmed\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			code := Run("muster", &b, func(ctx context.Context) error {
				if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
					return err
				}
				<-ctx.Done()
				return tt.end(ctx)
			})
			if code != tt.code || b.String() != tt.text {
				t.Errorf("got %d %q, want %d %q", code, b.String(), tt.code, tt.text)
			}
		})
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	PrintTable(&b, [][]string{{"HOST", "WHY"}, {"café-1", "ok"}, {"x\x1b", ""}})
	if got, want := b.String(), "HOST    WHY\ncafé-1  ok\nx?\n"; got != want {
		t.Errorf("table %q, want %q", got, want)
	}
	b.Reset()
	if err := PrintJSON(&b, map[string]any{"a<b": []string{}}); err != nil || b.String() != "{\n  \"a<b\": []\n}\n" {
		t.Errorf("json %q %v", b.String(), err)
	}
	for _, tt := range []struct{ got, want string }{
		{Count(1, "host"), "1 host"}, {Count(0, "host"), "0 hosts"}, {Count(4982, "host"), "4,982 hosts"},
		{Number(1234567), "1,234,567"}, {Number(-1234), "-1,234"}, {Number(-123), "-123"},
		{Elapsed(1234 * time.Microsecond), "1ms"}, {Elapsed(2449 * time.Millisecond), "2.4s"}, {Elapsed(190 * time.Second), "3m10s"},
		{Short("0123456789abcdef"), "0123456789ab"}, {Short("abc"), "abc"},
		{Names([]string{"b", "a"}, 2), "a, b"}, {Names([]string{"c", "b", "a"}, 2), "a, b and 1 more"},
		{Suggest("publsh", []string{"publish", "wait"}), `did you mean "publish"?`}, {Suggest("zzz", []string{"publish"}), ""}, {Suggest("x", []string{"y"}), ""},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}
