// Command rates simulates rollouts and counts how often a gate stops a good release, and how often it lets a bad one pass: docs/rates.md.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	n := flag.Int("n", 10_000, "simulated rollouts for each case")
	out := flag.String("o", "", "write the page to this file (default: print it)")
	flag.Parse()
	if flag.NArg() > 0 || *n < 1 {
		flag.Usage()
		os.Exit(2)
	}
	done, all := 0, len(apart())+len(late())
	for _, s := range sections {
		all += len(s.cells())
	}
	begun = func(c cell) {
		done++
		fmt.Fprintf(os.Stderr, "rates: case %d of %d: %d hosts, %v × as bad\n", done, all, c.hosts, c.effect)
	}
	text := page(*n)
	if *out == "" {
		fmt.Print(text)
		return
	}
	if err := os.WriteFile(*out, []byte(text), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "rates:", err)
		os.Exit(7)
	}
}
