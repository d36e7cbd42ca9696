package forge

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxPerStep is how many annotations of a level GitHub shows of one step.
const maxPerStep = 10

// A workflow's runner reads commands from what a step prints: https://docs.github.com/en/actions/using-workflows/workflow-commands-for-github-actions
// What others wrote is only ever data in them, or printed while the runner does not listen.

var (
	commandData     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	commandProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// visible is text of several lines without control characters.
func visible(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\r\n", "\n"), "\n")
	for i, l := range lines {
		lead := len(l) - len(strings.TrimLeft(l, " "))
		lines[i] = l[:lead] + oneLineKeepingSpaces(l[lead:])
	}
	return strings.Join(lines, "\n")
}

func oneLineKeepingSpaces(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// PrintAnnotations writes annotations as workflow commands, for a token that cannot write a check. GitHub shows ten of a level; left is how many were not printed.
func PrintAnnotations(w io.Writer, list []Annotation) (left int, err error) {
	printed := map[Level]int{}
	for _, a := range list {
		if printed[a.Level] == maxPerStep || commandNames[a.Level] == "" {
			left++
			continue
		}
		printed[a.Level]++
		if err := WriteAnnotation(w, a); err != nil {
			return left, err
		}
	}
	return left, nil
}

var commandNames = map[Level]string{LevelError: "error", LevelWarning: "warning", LevelNotice: "notice"}

// WriteAnnotation writes one annotation as a workflow command: the one place where what others wrote becomes part of one.
func WriteAnnotation(w io.Writer, a Annotation) error {
	name := commandNames[a.Level]
	if name == "" {
		return fmt.Errorf("write an annotation: %.40q is not a level", a.Level)
	}
	var props []string
	if a.Path != "" {
		props = append(props, "file="+commandProperty.Replace(visible(a.Path)))
		if a.Line > 0 {
			props = append(props, fmt.Sprintf("line=%d", a.Line))
			if a.Col > 0 {
				props = append(props, fmt.Sprintf("col=%d", a.Col))
			}
		}
	}
	if a.Title != "" {
		props = append(props, "title="+commandProperty.Replace(oneLine(a.Title)))
	}
	_, err := fmt.Fprintf(w, "::%s %s::%s\n", name, strings.Join(props, ","), commandData.Replace(visible(a.Message)))
	return err
}

// Deaf makes the runner take nothing for a command until end is called: what is printed between may hold what others wrote. The word that ends it cannot be guessed.
func Deaf(w io.Writer) (end func() error, err error) {
	var word [16]byte
	if _, err := rand.Read(word[:]); err != nil {
		return nil, err
	}
	token := "muster-" + hex.EncodeToString(word[:])
	if _, err := fmt.Fprintf(w, "::stop-commands::%s\n", token); err != nil {
		return nil, err
	}
	return func() error {
		_, err := fmt.Fprintf(w, "\n::%s::\n", token)
		return err
	}, nil
}

// AppendSummary adds markdown to the job's summary, the file of GITHUB_STEP_SUMMARY. A step's summary may have 1 MiB, and one that is larger is not shown at all.
func AppendSummary(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("write the job's summary: %w", err)
	}
	defer f.Close()
	room := int64(maxSummary)
	if info, err := f.Stat(); err == nil {
		room -= info.Size()
	}
	if room < 1<<10 {
		return fmt.Errorf("write the job's summary: other steps have filled it")
	}
	if _, err := io.WriteString(f, Fit(text, int(room))+"\n"); err != nil {
		return fmt.Errorf("write the job's summary: %w", err)
	}
	return f.Close()
}
