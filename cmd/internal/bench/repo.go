package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// generate writes a config repo of n services for four cohorts, and makes it a git repository. A service has about 25 fields: a schema in CUE that
// builds on a shared one, base and overlays in YAML and JSON, one overlay in CUE; one in four declares its files.
func generate(ctx context.Context, dir string, n int) error {
	files := map[string]string{
		"cue.mod/module.cue":     "module: \"acme.example/config@v0\"\nlanguage: version: \"v0.17.0\"\n",
		"lib/schema/service.cue": sharedSchema,
		"fleet/fleet.cue":        benchFleet,
	}
	for i := range n {
		addService(files, i)
	}
	return commitAll(ctx, dir, files)
}

// commitAll makes a git repository with one commit of these files.
func commitAll(ctx context.Context, dir string, files map[string]string) error {
	for name, data := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=b", "-c", "user.email=b@acme.example", "commit", "-q", "-m", "all"}} {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", args[0], err, out)
		}
	}
	return nil
}

const benchFleet = `package fleet

precedence: ["env", "region", "cohort"]
cohorts: {
	"prod-eu": {labels: {env: "prod", region: "eu"}, hosts: expect: 100}
	"prod-us": {labels: {env: "prod", region: "us"}, hosts: expect: 100}
	"staging": {labels: {env: "staging", region: "eu"}, hosts: expect: 10}
	"dev": {labels: {env: "dev", region: "us"}, hosts: expect: 5}
}
`

const sharedSchema = `package schema

#Duration: =~"^[0-9]+(ms|s|m|h)$"
#Port:     int & >0 & <65536

#Service: {
	name!:      =~"^[a-z][a-z0-9-]*$"
	replicas:   int & >=1 & <=500 | *2
	log_level:  *"info" | "debug" | "warn" | "error"
	log_format: *"json" | "text"
	listen: {
		host: *"0.0.0.0" | string
		port!: #Port
		tls:   *true | bool
	}
	limits: {
		cpu:    *"500m" | =~"^[0-9]+m?$"
		memory: *"256Mi" | =~"^[0-9]+(Mi|Gi)$"
	}
	timeouts: {
		connect: *"1s" | #Duration
		read:    *"5s" | #Duration
		write:   *"5s" | #Duration
		idle:    *"2m" | #Duration
	}
	database: {
		host!:    string
		port:     *5432 | #Port
		name!:    string
		pool_min: int & >=0 | *2
		pool_max: int & >=pool_min | *(pool_min * 4)
	}
	cache: {
		enabled: *true | bool
		ttl:     *"10m" | #Duration
		nodes: [...string]
	}
	features: [string]: bool
	sampling: number & >=0 & <=1 | *0.1
}
`

// addService adds the files of one service; i makes them differ.
func addService(files map[string]string, i int) {
	name := fmt.Sprintf("svc-%04d", i)
	dir := "services/" + name + "/"
	pkg := strings.ReplaceAll(name, "-", "_")
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n\nimport \"acme.example/config/lib/schema\"\n\n#Config: {\n\tschema.#Service\n\tname!: %q\n\tworkers: int & >=1 & <=64 | *%d\n\tqueue: {size: int & >=workers | *(workers * 100), drop: *false | bool}\n}\nvalues: #Config\n", pkg, name, 1+i%8)
	fmt.Fprintf(&b, "overlay: cohort: \"prod-us\": {replicas: %d, features: burst: true}\n", 3+i%5)
	if i%4 == 0 {
		fmt.Fprintf(&b, "files: {\n\t\"%s.yaml\": {format: \"yaml\", data: values}\n\t\"listen.env\": {format: \"env\", data: {PORT: values.listen.port, NAME: values.name}}\n}\n", name)
	}
	files[dir+"service.cue"] = b.String()
	if i%3 == 0 {
		files[dir+"base.json"] = fmt.Sprintf(`{
  "name": %q,
  "listen": {"port": %d},
  "database": {"host": "db.%s.internal", "name": "app_%d", "pool_min": %d},
  "cache": {"nodes": ["c1:11211", "c2:11211", "c3:11211"]},
  "features": {"fast_path": true, "new_ui": false, "burst": false},
  "sampling": 0.25
}
`, name, 8000+i%1000, name, i, 1+i%4)
	} else {
		files[dir+"base.yaml"] = fmt.Sprintf(`name: %s
listen:
  port: %d
database:
  host: db.%s.internal
  name: app_%d
  pool_min: %d
cache:
  nodes: ["c1:11211", "c2:11211", "c3:11211"]
features:
  fast_path: true
  new_ui: false
  burst: false
sampling: 0.25
`, name, 8000+i%1000, name, i, 1+i%4)
	}
	files[dir+"overlays/env/prod.yaml"] = fmt.Sprintf("replicas: %d\nlog_level: warn\nlimits:\n  cpu: \"2\"\n  memory: 2Gi\ndatabase:\n  pool_min: %d\n", 10+i%20, 5+i%3)
	files[dir+"overlays/env/dev.yaml"] = "replicas: 1\nlog_level: debug\nlog_format: text\nlisten:\n  tls: false\ncache:\n  enabled: false\n"
	files[dir+"overlays/region/eu.yaml"] = fmt.Sprintf("database:\n  host: db.eu.%s.internal\ntimeouts:\n  read: 8s\n", name)
	files[dir+"overlays/region/us.json"] = fmt.Sprintf("{\"database\": {\"host\": \"db.us.%s.internal\"}, \"timeouts\": {\"idle\": \"90s\"}}\n", name)
}

// changeOne changes a value of one service, another one each round.
func changeOne(dir string, round, n int) error {
	name := filepath.Join(dir, fmt.Sprintf("services/svc-%04d/overlays/env/prod.yaml", (round*7919+1)%n))
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, fmt.Sprintf("workers: %d\n", 2+round%60)...), 0o644)
}
