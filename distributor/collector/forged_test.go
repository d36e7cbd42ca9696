package collector

import (
	"net/http"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/verdict"
)

// A page of another site, open in a browser on the collector's machine, changes nothing, also where no token is needed. The collector's own page and programs may.
func TestForgedRequests(t *testing.T) {
	r, _ := pageRig(t, nil)
	post := func(path, body string, header map[string]string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	const retire = `{"cohort":"prod-eu","hosts":["web-003"],"by":"a page","reason":""}`
	for what, header := range map[string]map[string]string{
		"cross-site":           {"Content-Type": "text/plain", "Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
		"another port":         {"Content-Type": "text/plain", "Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
		"an older browser":     {"Content-Type": "text/plain", "Origin": "https://evil.example"},
		"from a file or frame": {"Content-Type": "text/plain", "Origin": "null"},
	} {
		for _, path := range []string{"/v1/hosts/retire", "/v1/hosts/accept", "/v1/reports", "/login", "/logout"} {
			if status := post(path, retire, header); status != http.StatusForbidden {
				t.Errorf("%s to %s: %d", what, path, status)
			}
		}
	}
	r.is("web-003", verdict.Applying, "")
	for what, header := range map[string]map[string]string{
		"the page's own form": {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin", "Origin": r.server.URL},
		"without fetch data":  {"Content-Type": "application/x-www-form-urlencoded", "Origin": r.server.URL},
	} {
		if status := post("/logout", "", header); status != http.StatusSeeOther {
			t.Errorf("%s: %d", what, status)
		}
	}
	// What a form can send is no JSON, also if a browser says nothing of where the page is from.
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain; application/json", "application/jsonx"} {
		for _, path := range []string{"/v1/hosts/retire", "/v1/hosts/unretire", "/v1/hosts/accept", "/v1/reports"} {
			if status := post(path, retire, map[string]string{"Content-Type": kind}); status != http.StatusUnsupportedMediaType {
				t.Errorf("%q to %s: %d", kind, path, status)
			}
		}
	}
	r.is("web-003", verdict.Applying, "")
	if status := post("/v1/hosts/retire", retire, map[string]string{"Content-Type": "application/json; charset=utf-8"}); status != http.StatusOK {
		t.Errorf("a program: %d", status)
	}
	r.is("web-003", verdict.Retired, "")
}
