package edit_test

import (
	"errors"
	"testing"

	"github.com/muster-config/muster/cue/eval/edit"
)

// FuzzLayer: whatever stands in a layer file, the answer is a file that says what was asked for, which Layer itself reads again, or an error.
func FuzzLayer(f *testing.F) {
	for _, name := range []string{"a.yaml", "a.json", "a.toml", "a.env"} {
		for _, data := range []string{"", "a: 1\nb:\n  c: [1, 2]\n", "{\"a\": 1}", "a = 1\n[b]\nc = 2\n", "A=1\n", "a: &x {b: 1}\nc: *x\n", "a: |\n  text\nb:\n", "a:\n- 1\n- 2\n# end", "{a: {b: 1,}, c: '#'}"} {
			f.Add(name, []byte(data), true, `{"a": 2, "b": {"c": null, "d": "x"}}`)
		}
	}
	f.Fuzz(func(t *testing.T, name string, data []byte, base bool, values string) {
		out, err := edit.Layer(name, data, base, values)
		if err != nil {
			return
		}
		// What came out is a layer file still: once more may be refused only for what no program can edit.
		_, err = edit.Layer(name, out, base, values)
		if err != nil && !errors.Is(err, edit.ErrCannot) {
			t.Errorf("%q with %s became %q, which cannot be read: %v", data, values, out, err)
		}
	})
}
