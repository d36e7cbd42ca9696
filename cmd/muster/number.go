package main

import (
	"fmt"
	"strconv"

	"github.com/muster-config/muster/cmd/internal/cli"
)

// fromOne is a flag's number that begins with 1: who writes 0 does not mean "not given", and is told so.
type fromOne[T int | uint64] struct {
	to   *T
	most T // 0: any
}

func (n fromOne[T]) Set(s string) error {
	v, err := strconv.ParseUint(s, 10, 63)
	if err != nil || v == 0 || n.most > 0 && T(v) > n.most {
		if n.most > 0 {
			return fmt.Errorf("not a whole number from 1 to %s", cli.Number(int(n.most)))
		}
		return fmt.Errorf("not a whole number from 1 on")
	}
	*n.to = T(v)
	return nil
}

func (n fromOne[T]) String() string {
	if n.to == nil || *n.to == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(*n.to), 10)
}

func (n fromOne[T]) Type() string { return "number" }
