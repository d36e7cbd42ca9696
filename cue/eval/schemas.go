package eval

import (
	"cuelang.org/go/cue"

	"github.com/muster-config/muster/cue/eval/jsonschema"
)

// jsonSchema is the service's #Config for editors, or nil without one. It says nothing about the values, so a service that does not
// validate has one too, as long as its package can be built.
func (r *serviceRun) jsonSchema() (schema []byte) {
	if !r.req.SchemasToo || !r.pkg.Exists() || r.pkg.Err() != nil && !r.conditional {
		return nil
	}
	defer func() {
		if recover() != nil {
			schema = nil // a schema that the library cannot take apart: validate has its own words for it
		}
	}()
	config := r.pkg.LookupPath(configPath)
	if !config.Exists() {
		return nil
	}
	return jsonschema.Write(r.name, config, r.inOverlay, secretName.MatchString)
}

// inOverlay tells whether some overlay has a value at a path.
func (r *serviceRun) inOverlay(path []string) bool {
	for _, byValue := range r.overlays {
		for _, f := range byValue {
			if f.node.At(path) != nil {
				return true
			}
		}
	}
	selectors := make([]cue.Selector, len(path))
	for i, p := range path {
		selectors[i] = cue.Str(p)
	}
	labels, err := r.pkg.LookupPath(overlayPath).Fields()
	if err != nil {
		return false
	}
	for labels.Next() {
		values, err := labels.Value().Fields()
		if err != nil {
			continue
		}
		for values.Next() {
			if values.Value().LookupPath(cue.MakePath(selectors...)).Exists() {
				return true
			}
		}
	}
	return false
}
