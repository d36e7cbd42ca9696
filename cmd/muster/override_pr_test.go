package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// TestScriptsForge runs the scripts that need a GitHub against one that has its rules. Behind it is the bare repository hub.git of the script.
func TestScriptsForge(t *testing.T) {
	runScripts(t, "forge", func(e *testscript.Env) {
		hub := forgetest.New(t)
		hub.Git = filepath.Join(e.WorkDir, "hub.git")
		hub.Allow("hub-token", forgetest.Token{Login: "ana", May: forgetest.All()})
		e.Setenv("GITHUB_API_URL", hub.URL)
		e.Setenv("HUB_TOKEN", "hub-token")
	})
}
