package eval

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

// SecretWords is the pattern of what is in the names of keys whose values are taken for secrets, with a schema or without; letters may be small or capital.
const SecretWords = `password|passwd|secret|token|private_?-?key|dsn|credential`

var secretName = regexp.MustCompile(`(?i)` + SecretWords)

// secretRef matches what may stand under a field marked @secret(): where the host has the secret, not the secret.
var secretRef = regexp.MustCompile(`^(/|%d/|\$\{?CREDENTIALS_DIRECTORY\}?/|(file|systemd|vault|exec):).`)

// secrets knows what of one service must never be printed: by the name of a key, by the schema's mark, and, as a last net over every
// message, by the texts themselves.
type secrets struct {
	marks bool // some schema of the service uses @secret()
	texts map[string]bool
	names map[string]bool // whether a key was found to be secretName
}

func newSecrets() *secrets { return &secrets{texts: map[string]bool{}, names: map[string]bool{}} }

// secretKey is secretName, once for each key.
func (x *secrets) secretKey(name string) bool {
	secret, known := x.names[name]
	if !known {
		secret = secretName.MatchString(name)
		x.names[name] = secret
	}
	return secret
}

// isSecret reports whether the value at path is one; s is its schema, which may not exist. A mark counts for all below it.
func (x *secrets) isSecret(path []string, s cue.Value) bool {
	return slices.ContainsFunc(path, x.secretKey) || x.marks && marked(s)
}

func marked(v cue.Value) bool {
	return v.Exists() && slices.ContainsFunc(v.Attributes(cue.FieldAttr), func(a cue.Attribute) bool { return a.Name() == "secret" })
}

// learn remembers the values of a layer that must not be printed.
func (x *secrets) learn(n *layer.Node, at func(path []string) cue.Value) {
	if n != nil {
		x.learnBelow(nil, n, false, at)
	}
}

// learnBelow knows whether n lies in a secret. The path is there where a schema has marks: without one only names count.
func (x *secrets) learnBelow(path []string, n *layer.Node, secret bool, at func(path []string) cue.Value) {
	below := func(key string, c *layer.Node) {
		var p []string
		if x.marks {
			p = append(path[:len(path):len(path)], key)
		}
		x.learnBelow(p, c, secret || x.secretKey(key) || x.marks && marked(at(p)), at)
	}
	switch n.Kind {
	case layer.Struct:
		for k, c := range n.Fields {
			below(k, c)
		}
	case layer.List:
		for i, c := range n.Items {
			below(strconv.Itoa(i), c)
		}
	case layer.Scalar:
		if !secret {
			return
		}
		switch v := n.Value.(type) {
		case string:
			x.add(v)
		case encode.Number:
			x.add(string(v))
		}
	}
}

func (x *secrets) add(text string) {
	if len(text) >= 3 && text != "true" && text != "false" && text != "null" {
		x.texts[text] = true
		if q := strconv.Quote(text); q[1:len(q)-1] != text {
			x.texts[q[1:len(q)-1]] = true
		}
	}
}

// withPassword matches the address of a service that has the password in it.
var withPassword = regexp.MustCompile(`://[^/\s@:]*:[^/\s@${][^/\s@]*@`)

// surely is how long a secret is that a value does not hold by accident.
const surely = 8

// reveals reports whether a text of the value holds a secret: it was computed from one, or repeats one.
func (x *secrets) reveals(v encode.Value, computed bool) bool {
	switch v := v.(type) {
	case string:
		if withPassword.MatchString(v) {
			return true
		}
		for t := range x.texts {
			if (computed || len(t) >= surely && !secretRef.MatchString(t)) && strings.Contains(v, t) {
				return true
			}
		}
	case encode.Number:
		return computed && x.texts[string(v)]
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return x.reveals(e, computed) })
	case map[string]any:
		for k := range v {
			if x.reveals(v[k], computed) {
				return true
			}
		}
	}
	return false
}

// sums are Unit.Secrets.
func (x *secrets) sums() []string {
	found := map[string]bool{}
	for t := range x.texts {
		for _, part := range append(strings.Split(t, "\n"), t) {
			if part = strings.TrimSpace(part); len(part) >= 3 {
				sum := sha256.Sum256(canonical(part))
				found[hex.EncodeToString(sum[:])] = true
			}
		}
	}
	return append([]string{}, sorted(found)...)
}

// packageSecrets is what the syntax of one package says of secrets.
type packageSecrets struct {
	marks bool
	texts []string
}

// learnPackage looks through a package's syntax: for marks in it and in what it imports, and for literals under fields that are secrets. Of what is
// imported, which services share, known remembers what was found.
func (x *secrets) learnPackage(inst *build.Instance, known map[*build.Instance]*packageSecrets) {
	seen := map[*build.Instance]bool{}
	var visit func(i *build.Instance)
	visit = func(i *build.Instance) {
		if i == nil || seen[i] {
			return
		}
		seen[i] = true
		found := known[i]
		if found == nil {
			found = &packageSecrets{}
			for _, f := range i.Files {
				x.inSyntax(f, found)
			}
			if i != inst {
				known[i] = found
			}
		}
		x.marks = x.marks || found.marks
		for _, text := range found.texts {
			x.add(text)
		}
		for _, dep := range i.Imports {
			visit(dep)
		}
	}
	visit(inst)
}

func (x *secrets) inSyntax(f *ast.File, found *packageSecrets) {
	ast.Walk(f, func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok {
			return true
		}
		name, _, _ := ast.LabelName(field.Label)
		mark := slices.ContainsFunc(field.Attrs, func(a *ast.Attribute) bool { return strings.HasPrefix(a.Text, "@secret(") })
		found.marks = found.marks || mark
		if mark || x.secretKey(name) {
			ast.Walk(field.Value, func(n ast.Node) bool {
				if u, ok := n.(*ast.UnaryExpr); ok && u.Op != token.SUB && u.Op != token.MUL {
					return false // a bound or a pattern is the schema's own, and the reason that a message gives
				}
				if lit, ok := n.(*ast.BasicLit); ok && (lit.Kind == token.STRING || lit.Kind == token.INT || lit.Kind == token.FLOAT) {
					found.texts = append(found.texts, strings.Trim(lit.Value, `"'#`))
				}
				return true
			}, nil)
		}
		return true
	}, nil)
}

func (x *secrets) longestFirst() []string {
	return slices.SortedFunc(maps.Keys(x.texts), func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
}

// scrub takes the secrets out of messages and paths, longest first.
func (x *secrets) scrub(problems []Problem) {
	texts := x.longestFirst()
	for i, p := range problems {
		for _, t := range texts {
			problems[i].Message = strings.ReplaceAll(problems[i].Message, t, hiddenText)
		}
		problems[i].Message = withPassword.ReplaceAllString(problems[i].Message, "://"+hiddenText+"@")
		problems[i].Path = x.clean(p.Path, texts)
	}
}

const hiddenText = "(secret)"

// clean takes the secrets out of a path, in which a key may be one. A short one must be all of a key.
func (x *secrets) clean(path string, texts []string) string {
	for _, t := range texts {
		if len(t) < 2*surely && x.secretKey(t) {
			continue // `password: password`: the key is none
		}
		if len(t) >= surely {
			path = strings.ReplaceAll(path, t, hiddenText)
		} else if strings.Contains(path, t) {
			keys := strings.Split(path, ".")
			for i, k := range keys {
				if strings.Trim(k, `"`) == t {
					keys[i] = hiddenText
				}
			}
			path = strings.Join(keys, ".")
		}
	}
	return path
}

// literals finds texts under fields marked @secret() that are not references: a secret stays out of the repo.
func (x *secrets) literals(service string, v cue.Value, n *layer.Node, schema func(path []string) cue.Value) []Problem {
	if !x.marks {
		return nil
	}
	var out []Problem
	var visit func(path []string, v cue.Value, secret bool)
	visit = func(path []string, v cue.Value, secret bool) {
		secret = secret || marked(v)
		switch v.IncompleteKind() {
		case cue.StructKind:
			it, err := v.Fields()
			for err == nil && it.Next() {
				visit(slices.Concat(path, []string{it.Selector().Unquoted()}), it.Value(), secret)
			}
		case cue.ListKind:
			it, err := v.List()
			for i := 0; err == nil && it.Next(); i++ {
				visit(slices.Concat(path, []string{strconv.Itoa(i)}), it.Value(), secret)
			}
		default:
			v, _ = v.Default()
			s, err := v.String()
			if !secret || err == nil && (s == "" || secretRef.MatchString(s)) || v.IsNull() {
				return
			}
			p := Problem{
				Severity: SeverityError, Service: service, Path: layer.PathText(path), SchemaAt: positions(schema(path).Pos()),
				Message: "a secret stays out of the repo: give the absolute path where the host has it",
			}
			if at := n.At(path); at != nil {
				p.SetAt = positions(at.Pos)
			}
			out = append(out, p)
		}
	}
	visit(nil, v, false)
	return out
}
