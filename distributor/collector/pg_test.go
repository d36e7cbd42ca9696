package collector

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// server is one PostgreSQL for all tests of this package, on a socket of its own. The first test that needs it starts it; TestMain ends it.
var server struct {
	once sync.Once
	dir  string
	cmd  *exec.Cmd
	err  error
	n    int
	mu   sync.Mutex
}

// pgTool finds a program of PostgreSQL, which distributions keep out of PATH.
func pgTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("PostgreSQL's %s is not installed: apt-get install postgresql", name)
	}
	return found[len(found)-1], nil
}

func startServer() error {
	initdb, err := pgTool("initdb")
	if err != nil {
		return err
	}
	postgres, err := pgTool("postgres")
	if err != nil {
		return err
	}
	// The path of a socket is short, and the parents of a test's own directory are for root alone.
	if server.dir, err = os.MkdirTemp("", "muster-pg-"); err != nil {
		return err
	}
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // it does not run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			return err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(server.dir, uid, gid); err != nil {
			return err
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(server.dir, "data")
	log, err := os.Create(filepath.Join(server.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	said := func() string {
		text, _ := os.ReadFile(log.Name())
		return string(text)
	}
	run := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.SysProcAttr = server.dir, attr
		cmd.Stdout, cmd.Stderr = log, log
		return cmd
	}
	if err := run(initdb, "--no-sync", "-U", "muster", "-A", "trust", "-E", "UTF8", "--locale=C", "-D", data).Run(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, said())
	}
	server.cmd = run(postgres, "-D", data, "-k", server.dir, "-c", "listen_addresses=", "-c", "fsync=off")
	withUs(server.cmd)
	if err := server.cmd.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		conn, err := pgx.Connect(context.Background(), pgURL("postgres"))
		if err == nil {
			return conn.Close(context.Background())
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("PostgreSQL does not come up: %w: %s", err, said())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func stopServer() {
	if server.cmd != nil && server.cmd.Process != nil {
		_ = server.cmd.Process.Signal(syscall.SIGQUIT)
		_ = server.cmd.Wait()
	}
	if server.dir != "" {
		os.RemoveAll(server.dir)
	}
}

func pgURL(database string) string {
	return fmt.Sprintf("postgres:///%s?host=%s&user=muster", database, server.dir)
}

// pgDatabase is the URL of a new, empty database.
func pgDatabase(t testing.TB) string {
	t.Helper()
	server.once.Do(func() { server.err = startServer() })
	if server.err != nil {
		t.Fatal(server.err)
	}
	server.mu.Lock()
	server.n++
	name := "t" + strconv.Itoa(server.n)
	server.mu.Unlock()
	conn, err := pgx.Connect(t.Context(), pgURL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return pgURL(name)
}

// A connection that the server ended is made anew, and what was not written is written then.
func TestPostgresComesBack(t *testing.T) {
	raw := pgDatabase(t)
	st, err := openPostgres(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	other, err := pgx.Connect(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	if _, err := other.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'muster-collector' AND datname = current_database()"); err != nil {
		t.Fatal(err)
	}
	if err := st.save(t.Context(), &batch{trust: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	m, err := st.load(t.Context(), func(hostRecord) error { return nil })
	if err != nil || string(m.trust) != "x" {
		t.Errorf("%q, %v", m.trust, err)
	}
}

// No message tells the password.
func TestPostgresPassword(t *testing.T) {
	for _, raw := range []string{"postgres://ana:hunter2@127.0.0.1:1/d", "postgres://ana:hunter2@127.0.0.1:x/d", "postgres://ana:hunter2@%zz/d"} {
		_, err := openPostgres(t.Context(), raw)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
		if err := checkDatabase(raw); err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
}

// A database of a newer version is left alone.
func TestPostgresOfANewerVersion(t *testing.T) {
	raw := pgDatabase(t)
	st, err := openPostgres(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.with(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "UPDATE muster_meta SET value = '9' WHERE name = 'version'")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openPostgres(t.Context(), raw); err == nil || !strings.Contains(err.Error(), "newer muster-collector") {
		t.Errorf("%v", err)
	}
	if !errors.Is(st.close(), nil) {
		t.Error("closed twice")
	}
}
