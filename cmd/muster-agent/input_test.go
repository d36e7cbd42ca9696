package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-config/muster/agent/agenttest"
)

// A named pipe in place of a file that the agent reads at its start is refused, not waited for.
func TestPipes(t *testing.T) {
	for _, name := range []string{"agent.yaml", "keyring.json", "services.d/more.yaml", "token", "ca.pem"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			etc := filepath.Dir(m.config)
			switch name {
			case "token":
				m.configure("collector: {url: \"http://127.0.0.1:1\", token_file: " + filepath.Join(etc, name) + "}\n")
			case "ca.pem":
				m.configure("collector: {url: \"https://127.0.0.1:1\", ca_file: " + filepath.Join(etc, name) + "}\n")
			}
			path := filepath.Join(etc, name)
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), syscall.Mkfifo(path, 0o600)); err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"once", "run"} {
				m.call(2, path+" is not a regular file", command)
			}
		})
	}
}

// The next step for what is wrong with a service is its file and its key.
func TestServiceHint(t *testing.T) {
	m := newMachine(t)
	part := filepath.Join(filepath.Dir(m.config), "services.d", "more.yaml")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(part), 0o755), os.WriteFile(part, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("services: {more: {links: {etc/x: x}}}\n")
	m.call(2, "correct services.more.links in "+part, "verify")
	write("services: {more: {relaod: [x]}}\n")
	m.call(2, "correct services.more.relaod in "+part, "verify")
	write("host: x\n")
	m.call(2, part+" may hold services: and nothing else, as "+m.config+" does", "verify")
	write("{")
	m.call(2, part+" may hold services: and nothing else", "verify")
	if err := os.Remove(part); err != nil {
		t.Fatal(err)
	}
	m.configure("  broken: {unit: --x}\n")
	m.call(2, "correct services.broken.unit in "+m.config, "verify")
	m.configure("pol: 5s\n")
	m.call(2, "`muster init` writes a commented example", "verify")
}

// once --install does not let a service start beside a link that is not the agent's.
func TestInstallBesideForeignFile(t *testing.T) {
	m := newMachine(t)
	link := filepath.Join(t.TempDir(), "checkout.yaml")
	data, err := os.ReadFile(m.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.config, []byte(strings.Replace(string(data), "  checkout:\n", "  checkout:\n    links: {"+link+": checkout.yaml}\n", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	m.call(0, "", "once", "--install")
	if err := errors.Join(os.Remove(link), os.WriteFile(link, []byte("mine"), 0o644)); err != nil {
		t.Fatal(err)
	}
	m.call(1, "epoch 1 is installed, and link of checkout: "+link+" is somebody else's file", "once", "--install")
	m.call(1, "1 path not as released", "verify")
}
