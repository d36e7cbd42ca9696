package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/wire"
)

var update = flag.Bool("update", false, "write the golden vector anew")

const golden = "../../testdata/vectors/report/full.json"

// full has every field set.
func full() *report.Report {
	yes, turn := true, time.Date(2026, 11, 30, 6, 1, 0, 0, time.UTC)
	return &report.Report{
		V: 1, Repo: "acme/config", Store: strings.Repeat("0a", 16), Cohort: "prod-eu", Host: "web-17.eu", Labels: map[string]string{"role": "web", "zone": "eu-west-1a"},
		Boot: "5f1c9a0b7d2e4833", Counter: 42, Key: bytes.Repeat([]byte{7}, 32), Agent: "0.1.0", Reads: 1, At: time.Date(2026, 11, 30, 6, 0, 0, 5e8, time.UTC),
		Seen: "1-204-3", Desired: 1043, Attempted: 1043, Running: 1042, Content: "sha256:" + strings.Repeat("ab", 32), Override: "inc-311", Source: "wave", Mode: "enforce",
		Phase: report.PhaseConfirming, Grade: manifest.GradeProcess, Confirmed: true, Reason: "checkout: process still states epoch 1041", Code: "no confirmation", Tries: 2, Stale: true,
		Drift: []string{"checkout/checkout.yaml"}, Drifted: 61,
		Services: map[string]report.Service{
			"checkout": {State: "waiting", Epoch: 1041, Expected: 1043, Grade: manifest.GradeReloaded, Healthy: &yes, AgeS: 1.5, Reason: "process still states epoch 1041", Restarts: 3,
				Instances: map[string]report.ServiceInstance{"a": {Epoch: 1043, State: "confirmed", Reason: "ok"}}},
		},
		Held:       &report.Hold{By: "ana", Why: "INC-300", Since: turn.Add(-time.Hour), Until: turn.Add(time.Hour)},
		WaitsUntil: &turn,
		Probes:     map[string]report.Probe{"checkout": {Count: 12, Failures: 1, P50MS: 1.25, MaxMS: 30}},
		Poll:       60, Ext: map[string]json.RawMessage{"later": json.RawMessage(`{"x":[1,null]}`)},
	}
}

func TestGolden(t *testing.T) {
	r := full()
	for _, v := range []reflect.Value{reflect.ValueOf(*r), reflect.ValueOf(r.Services["checkout"]), reflect.ValueOf(r.Probes["checkout"])} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("the vector leaves %s unset", v.Type().Field(i).Name)
			}
		}
	}
	data, err := wire.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(data)); diff != "" {
		t.Errorf("the encoding changed, which breaks deployed agents and collectors:\n%s", diff)
	}
	got, err := report.Decode(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("decoded differently:\n%s", diff)
	}
}

func TestB100OddReports(t *testing.T) {
	long := strings.Repeat("x", 501)
	for name, tt := range map[string]struct {
		change func(*report.Report)
		want   string
	}{
		"version 0":           {func(r *report.Report) { r.V = 0 }, "v: version 0"},
		"version of later":    {func(r *report.Report) { r.V = 2 }, "v: version 2"},
		"repo":                {func(r *report.Report) { r.Repo = "../x" }, "repo"},
		"store":               {func(r *report.Report) { r.Store = "XX" }, "store"},
		"cohort":              {func(r *report.Report) { r.Cohort = "Prod" }, "cohort"},
		"script in host":      {func(r *report.Report) { r.Host = "<script>alert(1)</script>" }, "host"},
		"line break in host":  {func(r *report.Report) { r.Host = "a\nb" }, "host"},
		"no host":             {func(r *report.Report) { r.Host = "" }, "host"},
		"label name":          {func(r *report.Report) { r.Labels = map[string]string{"A b": "x"} }, "labels"},
		"label value":         {func(r *report.Report) { r.Labels = map[string]string{"a": "x\x1b"} }, "labels.a"},
		"boot":                {func(r *report.Report) { r.Boot = "a b" }, "boot"},
		"boot too long":       {func(r *report.Report) { r.Boot = strings.Repeat("a", 65) }, "boot"},
		"counter 0":           {func(r *report.Report) { r.Counter = 0 }, "counter"},
		"counter 2^53":        {func(r *report.Report) { r.Counter = 1 << 53 }, "counter"},
		"key":                 {func(r *report.Report) { r.Key = r.Key[1:] }, "key"},
		"agent":               {func(r *report.Report) { r.Agent = long }, "agent"},
		"reads":               {func(r *report.Report) { r.Reads = 0 }, "reads"},
		"seen":                {func(r *report.Report) { r.Seen = "1-2" }, "seen"},
		"desired 2^53":        {func(r *report.Report) { r.Desired = 1 << 53 }, "desired"},
		"attempted 2^63":      {func(r *report.Report) { r.Attempted = 1 << 63 }, "attempted"},
		"running 2^53":        {func(r *report.Report) { r.Running = 1 << 53 }, "running"},
		"content":             {func(r *report.Report) { r.Content = "md5:1" }, "content"},
		"override":            {func(r *report.Report) { r.Override = "INC 1" }, "override"},
		"source":              {func(r *report.Report) { r.Source = "guess" }, "source"},
		"mode":                {func(r *report.Report) { r.Mode = "" }, "mode"},
		"phase":               {func(r *report.Report) { r.Phase = "fine" }, "phase"},
		"grade":               {func(r *report.Report) { r.Grade = "sure" }, "grade"},
		"reason":              {func(r *report.Report) { r.Reason = long }, "reason"},
		"code":                {func(r *report.Report) { r.Code = long }, "code"},
		"tries":               {func(r *report.Report) { r.Tries = -1 }, "tries"},
		"drift":               {func(r *report.Report) { r.Drift = make([]string, 51) }, "drift"},
		"drifted":             {func(r *report.Report) { r.Drifted = -1 }, "drifted"},
		"service name":        {func(r *report.Report) { r.Services = map[string]report.Service{"a/b": {}} }, "services"},
		"service epoch":       {func(r *report.Report) { r.Services = map[string]report.Service{"a": {Epoch: 1 << 53}} }, "services.a.epoch"},
		"service expected":    {func(r *report.Report) { r.Services = map[string]report.Service{"a": {Expected: 1 << 53}} }, "services.a.expected"},
		"service age":         {func(r *report.Report) { r.Services = map[string]report.Service{"a": {AgeS: -1}} }, "services.a.age_s"},
		"service grade":       {func(r *report.Report) { r.Services = map[string]report.Service{"a": {Grade: "x"}} }, "services.a.grade"},
		"instance":            {func(r *report.Report) { r.Services["checkout"].Instances["B"] = report.ServiceInstance{} }, "services.checkout.instances"},
		"more failures":       {func(r *report.Report) { r.Probes = map[string]report.Probe{"p": {Failures: 1}} }, "probes.p"},
		"poll 0":              {func(r *report.Report) { r.Poll = 0 }, "poll_s"},
		"poll without an end": {func(r *report.Report) { r.Poll = 1e300 }, "poll_s"},
	} {
		t.Run(name, func(t *testing.T) {
			r := full()
			tt.change(r)
			err := r.Validate()
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Fatalf("Validate: %v, want %q", err, tt.want)
			}
			data, err := wire.Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := report.Decode(data); err == nil {
				t.Error("Decode takes it")
			}
		})
	}
	good, err := wire.Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ old, new, want string }{
		"epoch -1":        {`"desired":1043`, `"desired":-1`, "desired"},
		"epoch 2^63":      {`"desired":1043`, `"desired":9223372036854775808`, "desired"},
		"epoch a string":  {`"desired":1043`, `"desired":"7"`, "desired"},
		"epoch a float":   {`"desired":1043`, `"desired":1.5`, "desired"},
		"unknown key":     {`"tries":2`, `"tries":2,"root":true`, "root"},
		"doubled key":     {`"tries":2`, `"tries":2,"tries":3`, "tries"},
		"missing key":     {`"counter":42,`, ``, "counter"},
		"trailing data":   {`"later":{"x":[1,null]}}}`, `"later":{}}}{}`, "after"},
		"a list for it":   {`{"v":1`, `[{"v":1`, "array"},
		"key in its case": {`"tries":2`, `"Tries":2`, "Tries"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := strings.Replace(string(good), tt.old, tt.new, 1)
			if bad == string(good) {
				t.Fatal("nothing was replaced")
			}
			if _, err := report.Decode([]byte(bad)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Decode: %v, want %q", err, tt.want)
			}
		})
	}
	if _, err := report.Decode(bytes.Repeat([]byte{' '}, report.MaxReportBytes+1)); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("an oversized report: %v", err)
	}
}

// A report must not be lost because a command printed something odd.
func TestOddTextIsTaken(t *testing.T) {
	r := full()
	r.Reason = "reload:\n\x1b[31mno such unit\x00"
	data, err := wire.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := report.Decode(data)
	if err != nil || got.Reason != r.Reason {
		t.Fatalf("%v, reason %q", err, got.Reason)
	}
}

func TestCutReason(t *testing.T) {
	for _, s := range []string{"", "ok", strings.Repeat("ä", 400), strings.Repeat("x", 499) + "€€", "a\xffb" + strings.Repeat("y", 900)} {
		got := report.CutReason(s)
		if len(got) > report.MaxReason || !utf8.ValidString(got) {
			t.Errorf("%q: %d bytes, valid %v", s, len(got), utf8.ValidString(got))
		}
		if len(s) <= report.MaxReason && utf8.ValidString(s) && got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	good, err := wire.Encode(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"v":1,"poll_s":1e999}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := report.Decode(data)
		if err != nil {
			return
		}
		// What is taken says the same after another round.
		again, err := wire.Encode(r)
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		if len(again) > report.MaxReportBytes {
			return
		}
		r2, err := report.Decode(again)
		if err != nil {
			t.Fatalf("decode again: %v\n%s", err, again)
		}
		third, err := wire.Encode(r2)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("not stable: %v\n%s\n%s", err, again, third)
		}
	})
}
