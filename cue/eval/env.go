package eval

import "strings"

// envStrings adds to "is a string, not an integer" why that is so where an .env file says it: a format without types has no other way.
func envStrings(problems []Problem) {
	for i, p := range problems {
		if len(p.SetAt) > 0 && strings.HasSuffix(p.SetAt[0].File, ".env") && strings.Contains(p.Message, " is a string, not ") {
			problems[i].Message += ": every value in an .env file is a string, so the schema takes strings (`string`, `=~\"^[0-9]+$\"`)"
		}
	}
}
