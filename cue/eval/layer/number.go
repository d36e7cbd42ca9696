package layer

import (
	"errors"
	"math/big"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"github.com/muster-config/muster/cue/eval/encode"
)

// maxDigits is the precision with which CUE computes; a longer number would come out of it rounded.
const maxDigits = 34

// maxExponent bounds how far the point moves when a number is written without an exponent: float64 ends there too.
const maxExponent = 400

var (
	errDigits = errors.New("a number of more than 34 digits would be rounded: quote it, so that it is a string")
	errRange  = errors.New("the number is out of range")
	errInf    = errors.New("infinity and not-a-number are not values")
)

// ParseNumber reads decimal text (an exponent is allowed) as the canonical number: the shortest plain decimal of the same value. An integer
// stays an integer and a float a float ("1e3" is "1000.0").
func ParseNumber(text string, integer bool) (encode.Number, error) {
	d, _, err := apd.NewFromString(text)
	if err != nil || d.Form != apd.Finite {
		return "", errInf
	}
	return fromDecimal(d, integer)
}

// FromMantExp is the number mant × 10^exp, as cue.Value.MantExp gives it.
func FromMantExp(mant *big.Int, exp int, integer bool) (encode.Number, error) {
	if exp > maxExponent || exp < -2*maxExponent {
		return "", errRange
	}
	if integer && exp > 0 && len(new(big.Int).Abs(mant).String()) >= maxDigits {
		// CUE keeps the digits of an integer until arithmetic rounds it to its precision.
		return "", errors.New("the integer is so large that CUE rounded it")
	}
	d := apd.New(0, int32(exp))
	d.Coeff.SetMathBigInt(new(big.Int).Abs(mant))
	d.Negative = mant.Sign() < 0
	return fromDecimal(d, integer)
}

func fromDecimal(d *apd.Decimal, integer bool) (encode.Number, error) {
	if d.IsZero() {
		if integer {
			return "0", nil
		}
		return "0.0", nil
	}
	var r apd.Decimal
	r.Reduce(d)
	if r.NumDigits() > maxDigits {
		return "", errDigits
	}
	if top := r.NumDigits() + int64(r.Exponent); top > maxExponent || r.Exponent < -maxExponent {
		return "", errRange
	}
	s := r.Text('f')
	if !integer && !strings.Contains(s, ".") {
		s += ".0"
	}
	return encode.Number(s), nil
}

// bigInt reads an integer with a base prefix (0x, 0o, 0b, or 0 for octal).
func bigInt(s string) (string, bool) {
	i, ok := new(big.Int).SetString(s, 0)
	if !ok {
		return "", false
	}
	return i.String(), true
}
