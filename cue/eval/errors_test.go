package eval

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each testdata/errors/NAME.txtar is a repo, and NAME.txt what is said about it.
func TestErrors(t *testing.T) {
	names, err := filepath.Glob("testdata/errors/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			res := Evaluate(repo(string(text)))
			golden(t, "errors/"+strings.TrimSuffix(filepath.Base(name), ".txtar")+".txt", Format(res.Problems))
		})
	}
}
