package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
)

func TestParseCSV(t *testing.T) {
	got, err := inventory.ParseCSV([]byte("\xef\xbb\xbfhost,cohort,zone,rack\r\nweb-2,prod,eu-1a,\r\nweb-1,prod,\"eu, 1b\",7\r\n\r\ndb-1,data,eu-1a,7\r\nweb-1,shared,,\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []inventory.Host{
		{Name: "db-1", Cohort: "data", Labels: map[string]string{"zone": "eu-1a", "rack": "7"}},
		{Name: "web-1", Cohort: "prod", Labels: map[string]string{"zone": "eu, 1b", "rack": "7"}},
		{Name: "web-2", Cohort: "prod", Labels: map[string]string{"zone": "eu-1a"}},
		{Name: "web-1", Cohort: "shared", Labels: map[string]string{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The columns come in any order.
	swapped, err := inventory.ParseCSV([]byte("zone,cohort,host\neu,prod,a\n"))
	if err != nil || len(swapped) != 1 || swapped[0].Name != "a" || swapped[0].Cohort != "prod" || swapped[0].Labels["zone"] != "eu" {
		t.Errorf("%+v, %v", swapped, err)
	}
}

func TestParseCSVRefuses(t *testing.T) {
	for name, test := range map[string]struct{ data, want string }{
		"nothing":            {"", "is empty"},
		"blank lines":        {"\n\n\n", "is empty"},
		"no host":            {"host,cohort\n", "lists no host"},
		"no header":          {"web-1,prod\n", "line 1: the header needs"},
		"no cohort column":   {"host,zone\na,b\n", "line 1: the header needs the columns host and cohort"},
		"semicolons":         {"host;cohort\na;b\n", "line 1: columns are parted by commas"},
		"label's name":       {"host,cohort,Zone!\na,b,c\n", `line 1: column "Zone!" is not`},
		"space in the name":  {"host, cohort\na,b\n", `line 1: column " cohort" is not`},
		"column twice":       {"host,cohort,zone,zone\na,b,c,d\n", `line 1: column "zone" is there twice`},
		"host column twice":  {"host,cohort,host\na,b,c\n", `line 1: column "host" is there twice`},
		"host twice":         {"host,cohort\na,b\nc,b\n\na,b\n", "line 5: host a is in cohort b already, in line 2"},
		"host name":          {"host,cohort\na,b\n-a,b\n", `line 3: host "-a" is not a host name`},
		"host with a script": {"host,cohort\n<script>,b\n", `line 2: host "<script>" is not`},
		"no host name":       {"host,cohort\n,b\n", `line 2: host "" is not`},
		"cohort's name":      {"host,cohort\na,Prod\n", `line 2: cohort "Prod" is not a name`},
		"cells missing":      {"host,cohort,zone\na,b\n", "line 2: has another number of cells than the header"},
		"cells too many":     {"host,cohort\na,b,c\n", "line 2: has another number of cells"},
		"open quote":         {"host,cohort\n\"a,b\n", "line 2"},
		"bare quote":         {"host,cohort\na\"b,c\n", "line 2: column 2"},
		"not UTF-8":          {"host,cohort,zone\na,b,x\na,c,\xff\n", "line 3: not UTF-8"},
		"control character":  {"host,cohort,zone\na,b,x\x00y\n", "line 2: label zone holds a control character"},
		"line break":         {"host,cohort,zone\na,b,\"x\ny\"\n", "line 2: label zone holds a control character"},
		"long value":         {"host,cohort,zone\na,b," + strings.Repeat("x", 201) + "\n", "line 2: label zone is longer"},
		"many labels":        {"host,cohort" + labels(101) + "\n", "line 1: more than 100 labels"},
		"large":              {strings.Repeat("x", inventory.MaxBytes+1), "larger than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			hosts, err := inventory.ParseCSV([]byte(test.data))
			if err == nil || hosts != nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v, %v; want %q", hosts, err, test.want)
			}
		})
	}
}

func labels(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ",l%d", i)
	}
	return b.String()
}

func FuzzParseCSV(f *testing.F) {
	for _, seed := range []string{
		"host,cohort\na,b\n", "host,cohort,zone\r\nweb-1,prod,\"eu, 1\"\r\n", "\xef\xbb\xbfcohort,host\nb,a", "host,cohort\n\"a\nb\",c\n", "host,cohort\na,b\na,b\n", "", "\n", "a;b\n", "host,cohort,\xff\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		hosts, err := inventory.ParseCSV(data)
		if err != nil {
			if hosts != nil || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("%d hosts and %q", len(hosts), err)
			}
			return
		}
		if len(hosts) == 0 {
			t.Fatal("an empty list, and no error")
		}
		seen := map[[2]string]bool{}
		for _, h := range hosts {
			if !manifest.ValidHost(h.Name) || !manifest.ValidName(h.Cohort) || h.Labels == nil || seen[[2]string{h.Cohort, h.Name}] {
				t.Fatalf("%+v", h)
			}
			seen[[2]string{h.Cohort, h.Name}] = true
			for k, v := range h.Labels {
				if !manifest.ValidName(k) || v == "" {
					t.Fatalf("%+v", h)
				}
			}
		}
		if !slices.IsSortedFunc(hosts, func(a, b inventory.Host) int {
			if a.Cohort != b.Cohort {
				return strings.Compare(a.Cohort, b.Cohort)
			}
			return strings.Compare(a.Name, b.Name)
		}) {
			t.Fatal("not sorted")
		}
	})
}
