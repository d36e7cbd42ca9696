package dir

import (
	"net/url"
	"runtime"
	"strings"
	"testing"
)

// What Windows makes of names is decided by pure functions, so that it is tested on every system.

func TestFileURLs(t *testing.T) {
	for _, c := range []struct {
		windows   bool
		root, url string
	}{
		{false, "/var/lib/store", "file:///var/lib/store"},
		{false, "/a store", "file:///a%20store"},
		{true, `C:\stores\prod eu`, "file:///C:/stores/prod%20eu"},
		{true, `\\server\share\store`, "file:////server/share/store"},
		{true, `C:\`, "file:///C:/"},
	} {
		got := (&url.URL{Scheme: "file", Path: urlPath(c.root, c.windows)}).String()
		if got != c.url {
			t.Errorf("%s: %s, want %s", c.root, got, c.url)
		}
		u, err := url.Parse(got)
		if err != nil {
			t.Fatal(err)
		}
		if back := fromURL(u.Path, c.windows); u.Host != "" || back != c.root {
			t.Errorf("%s names %q on host %q, want %q", got, back, u.Host, c.root)
		}
	}
	for _, path := range []string{"", "/", "/C:", "C:/x", "/stores", "/1:/x", "//", "///x", "/C:x"} {
		if got := fromURL(path, true); got != "" {
			t.Errorf("the path %q names %q on Windows; it names no directory for certain", path, got)
		}
	}
	for _, path := range []string{"", "relative"} {
		if got := fromURL(path, false); got != "" {
			t.Errorf("the path %q names %q", path, got)
		}
	}
}

func TestWindowsKeys(t *testing.T) {
	for _, key := range []string{"cohorts/prod-eu.json", "bundles/ab/abcd.tar.zst", "commits/00ff.json", "cohorts/console.json", "cohorts/com10.json", "history/eu/1-2-3"} {
		if err := checkWindowsKey(key); err != nil {
			t.Error(err)
		}
	}
	for key, says := range map[string]string{
		"cohorts/con.json":    "device",
		"cohorts/NUL":         "device",
		"history/aux/1-1-1":   "device",
		"cohorts/com1.x.json": "device",
		"cohorts/lpt9.json":   "device",
		"cohorts/nul .json":   "device",
		"cohorts/a.json:x":    "character",
		`cohorts/..\\a`:       "character",
		"cohorts/a.":          "takes off",
		"cohorts/a /b":        "takes off",
		"cohorts/com¹.json":   "device",
	} {
		if err := checkWindowsKey(key); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want one that says %q", key, err, says)
		}
	}
	if onWindows != (runtime.GOOS == "windows") {
		t.Error("this build takes itself for another system")
	}
}
