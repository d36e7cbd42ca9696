package manifest_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// TestFormatsAreDocumented demands that docs/formats.md names every field of every document.
func TestFormatsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/formats.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			walk(typ.Elem())
		case reflect.Struct:
			if seen[typ] || !strings.HasPrefix(typ.PkgPath(), "github.com/muster-config/") {
				return
			}
			seen[typ] = true
			for i := range typ.NumField() {
				f := typ.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if name == "" || name == "-" {
					t.Errorf("%s.%s has no JSON name", typ, f.Name)
				} else if !strings.Contains(string(doc), "`"+name+"`") {
					t.Errorf("docs/formats.md does not name %s.%s: `%s`", typ, f.Name, name)
				}
				walk(f.Type)
			}
		}
	}
	for _, v := range []any{
		manifest.Envelope{}, manifest.Keyring{}, manifest.Statement{}, manifest.Variants{}, manifest.Release{}, manifest.Manifest{}, manifest.Override{}, manifest.Head{}, manifest.StoreID{},
		manifest.CommitIndex{}, manifest.TrustState{}, bundle.Index{}, report.Report{}, api.ReportPost{}, api.ReportAnswer{}, api.Error{}, api.Status{}, api.Host{}, api.Release{}, api.Wait{},
	} {
		walk(reflect.TypeOf(v))
	}
	for _, key := range []string{manifest.KeyStore, manifest.KeyInventory, manifest.PrefixKeyrings, manifest.PrefixSources, manifest.PrefixBundles, manifest.PrefixReleases, manifest.PrefixCommits, manifest.PrefixCohorts, manifest.PrefixHistory, api.HeaderMark, api.HeaderHeartbeatKey, api.PathReports, api.PathWait} {
		if !strings.Contains(string(doc), key) {
			t.Errorf("docs/formats.md does not name %s", key)
		}
	}
}
