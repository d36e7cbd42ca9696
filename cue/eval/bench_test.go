package eval

import "testing"

// 200 services with a schema and an overlay for one cohort.
func BenchmarkEvaluate(b *testing.B) {
	req := manyServices(200)
	for b.Loop() {
		if res := Evaluate(req); len(res.Units) != 200 {
			b.Fatal(Format(res.Problems))
		}
	}
}
