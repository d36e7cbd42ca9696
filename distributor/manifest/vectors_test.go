package manifest_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
)

// Golden vectors pin every document to the byte, for other readers and for later versions of this one. They are written anew with MUSTER_UPDATE=1 or -update; a change
// of an existing one is a change of the format.
var update = flag.Bool("update", os.Getenv("MUSTER_UPDATE") == "1", "write the golden vectors")

const vectors = "../../testdata/vectors/manifest"

// golden compares one file, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join(vectors, name)
	if *update {
		if err := os.MkdirAll(vectors, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: the format changed:\n%s", name, cmp.Diff(string(want), string(got)))
	}
}

// resolveVector is one line of resolve.json: what the head assigns to a host at a time.
type resolveVector struct {
	Host     string            `json:"host"`
	Labels   map[string]string `json:"labels"`
	Now      time.Time         `json:"now"`
	Source   manifest.Source   `json:"source"`
	Epoch    uint64            `json:"epoch"`
	Override string            `json:"override"`
	Why      string            `json:"why"`
	Until    *time.Time        `json:"until"`
	Bundle   manifest.Object   `json:"bundle"`
	Content  string            `json:"content"`
	Variants *manifest.Object  `json:"variants_object"`
}

type pointVector struct {
	Salt  string `json:"salt"`
	Host  string `json:"host"`
	Point string `json:"point"`
}

type thresholdVector struct {
	Salt  string   `json:"salt"`
	Hosts []string `json:"hosts"`
	K     int      `json:"k"`
	Below string   `json:"below"` // "": all
}

type resolveVectors struct {
	Keyring    string            `json:"keyring"` // files beside this one
	Head       string            `json:"head"`
	Repo       string            `json:"repo"`
	Cohort     string            `json:"cohort"`
	Accepted   time.Time         `json:"accepted"`
	Mark       string            `json:"mark"`
	Resolve    []resolveVector   `json:"resolve"`
	Points     []pointVector     `json:"points"`
	Thresholds []thresholdVector `json:"thresholds"`
}

func TestVectors(t *testing.T) {
	head := fullHead(t)
	for name, doc := range map[string]any{
		"keyring.json":                      seal(t, manifest.KindKeyring, fullKeyring(), root1, root2),
		"keyring.payload.json":              fullKeyring(),
		"statement.json":                    seal(t, manifest.KindStatement, fullStatement(), releaseKey),
		"statement.payload.json":            fullStatement(),
		"statement-overridden.payload.json": overridden(1043, "inc-311"),
		"release.json":                      seal(t, manifest.KindRelease, fullRelease(t), releaseKey),
		"release.payload.json":              fullRelease(t),
		"release-override.json":             seal(t, manifest.KindRelease, fullOverrideRelease(t), operatorKey),
		"release-override.payload.json":     fullOverrideRelease(t),
		"manifest.json":                     head.Manifest,
		"manifest.payload.json":             fullManifest(t),
		"override.json":                     seal(t, manifest.KindOverride, fullOverride(t), operatorKey),
		"override.payload.json":             fullOverride(t),
		"override-end.payload.json":         ended(t, "inc-311", 1044),
		"head.json":                         head,
		"variants.json":                     fullVariants(),
		"store.json":                        manifest.StoreID{V: 1, ID: storeID},
		"commit.json":                       fullCommits()[0],
		"commit-refused.json":               fullCommits()[1],
		"trust.json":                        fullTrust(t),
	} {
		golden(t, name, encode(t, doc))
	}
	// What is pinned is also what is read, and written again to the byte.
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(vectors, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for name, decode := range decoders {
		if name == "head" {
			continue
		}
		for _, file := range []string{name + ".payload.json", name + ".json"} {
			data, err := os.ReadFile(filepath.Join(vectors, file))
			if err != nil {
				continue
			}
			doc, err := decode(data)
			if err != nil {
				t.Errorf("%s: %v", file, err)
			} else if !bytes.Equal(encode(t, doc), data) {
				t.Errorf("%s: written again it differs", file)
			}
			break
		}
	}
	s, err := manifest.NewTrust(repo, read("keyring.json"))
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.Keys()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"release.json", "release-override.json"} {
		if _, _, err := manifest.VerifyRelease(k, read(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, view, err := s.AcceptHead(cohort, read("head.json"), now)
	if err != nil {
		t.Fatal(err)
	}

	v := resolveVectors{Keyring: "keyring.json", Head: "head.json", Repo: repo, Cohort: cohort, Accepted: now, Mark: view.Mark().String()}
	canary := map[string]string{"canary": "true", "zone": "a"}
	for _, c := range []struct {
		host   string
		labels map[string]string
		at     time.Time
	}{
		{"web-4", nil, now}, {"web-4", nil, issued.Add(3 * time.Hour)}, {"web-5", canary, now.AddDate(0, 1, 0)}, {"web-1", nil, now}, {"web-1", canary, now}, {"web-1", canary, issued.Add(2 * time.Hour)},
		{"web-2.example.com", canary, issued.Add(2 * time.Hour)}, {"db-17", canary, now}, {"web-9", canary, now}, {"web-9", map[string]string{"canary": "true"}, now}, {"web-10", nil, now}, {"web-11", nil, now}, {"web-12", nil, now}, {"web-13", nil, now},
	} {
		r, err := manifest.Resolve(view, manifest.Host{Name: c.host, Labels: c.labels}, c.at)
		if err != nil {
			t.Fatal(err)
		}
		v.Resolve = append(v.Resolve, resolveVector{
			Host: c.host, Labels: c.labels, Now: c.at, Source: r.Source, Epoch: r.Epoch(), Override: r.Override, Why: r.Why, Until: r.Until, Bundle: r.Bundle, Content: r.Content, Variants: r.Variants,
		})
	}
	hosts := []string{"web-1", "web-2.example.com", "web-3", "web-4", "db-17"}
	for _, h := range hosts {
		v.Points = append(v.Points, pointVector{"1043", h, pointText(manifest.Point("1043", h))})
	}
	for k := range len(hosts) + 1 {
		below, _ := manifest.Threshold("1043", hosts, k)
		v.Thresholds = append(v.Thresholds, thresholdVector{"1043", hosts, k, below})
	}
	sources := map[manifest.Source]bool{}
	for _, r := range v.Resolve {
		sources[r.Source] = true
	}
	if len(sources) != 4 {
		t.Errorf("the vectors have only sources %v", sources)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, encode(t, v), "", "  "); err != nil {
		t.Fatal(err)
	}
	golden(t, "resolve.json", append(out.Bytes(), '\n'))
}

func pointText(p uint64) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	for i := range b {
		b[15-i] = digits[p>>(4*i)&15]
	}
	return string(b[:])
}
