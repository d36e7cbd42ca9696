package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Tick is the coarsest step of the clocks by which Linux stamps files and the starts of processes (100 a second).
const Tick = 10 * time.Millisecond

// Moment is a point in time on every clock by which files and processes are stamped. The wall clock may be set; the others start with the machine.
type Moment struct {
	Wall time.Time `json:"wall"`
	Boot string    `json:"boot"`    // the kernel's id of this start of the machine
	Up   int64     `json:"up_us"`   // µs since then, sleep included (/proc/<pid>/stat)
	Mono int64     `json:"mono_us"` // µs since then, without sleep (systemd)
}

// IsZero says whether the moment is not known.
func (m Moment) IsZero() bool { return m.Boot == "" }

// Now is the next tick: what is stamped from then on is stamped with at least this moment, and what was stamped before it with an earlier one. Who wants
// to tell one from the other waits for it: see Until.
func (p *Prober) Now() Moment { return now(Tick) }

func now(tick time.Duration) Moment {
	m := Moment{Wall: time.Now().UTC().Add(tick)}
	m.Up, m.Mono = clocks()
	if us := tick.Microseconds(); us > 0 {
		m.Up = (m.Up + us - 1) / us * us
		m.Mono += us // systemd's stamps are exact; who waits for the tick is past it all the same
	}
	// Without a boot id (no /proc) every moment is of one boot; better than to confirm a process that is older.
	m.Boot = boot()
	return m
}

// boot does not change while this process lives.
var boot = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
})

// Until is how long m is still ahead, a tick at most.
func (m Moment) Until() time.Duration {
	return min(max(time.Until(m.Wall), 0), Tick)
}

// start is when a process started, by the clock that told it.
type start struct {
	Moment
	mono bool
}

// Before says whether the process is older than m. Where m is not known it is: nothing is confirmed by mistake.
func (s start) Before(m Moment) bool {
	switch {
	case m.IsZero():
		return true
	case s.Boot != m.Boot:
		return false // the machine has started anew since m, and the process with it
	case s.mono:
		return s.Mono < m.Mono
	}
	return s.Up < m.Up
}

// String names a start: the same process has the same, another one another.
func (s start) String() string {
	if s.mono {
		return fmt.Sprintf("%s/mono %d", s.Boot, s.Mono)
	}
	return fmt.Sprintf("%s/up %d", s.Boot, s.Up)
}

func startOf(ctx context.Context, q Question) (start, error) {
	if q.Unit != "" {
		u, err := unitOf(ctx, q.Unit)
		switch {
		case err != nil:
			return start{}, err
		case !u.Running():
			return start{}, fmt.Errorf("unit %s is %s", q.Unit, u.State)
		}
		return u.start, nil
	}
	pid, err := readPID(q.PIDFile)
	if err != nil {
		return start{}, err
	}
	return startOfPID(pid)
}

// small is enough for a pid file, and for /proc/<pid>/stat.
const small = 4 << 10

func readPID(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("the process is not running: there is no %s", path)
	}
	if err != nil {
		return 0, fmt.Errorf("read the pid file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, small))
	if err != nil {
		return 0, fmt.Errorf("read the pid file %s: %w", path, err)
	}
	pid, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 32)
	if err != nil || pid < 1 {
		return 0, fmt.Errorf("%s holds no process id", path)
	}
	return int(pid), nil
}

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

func startOfPID(pid int) (start, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return start{}, fmt.Errorf("the process is not running: process %d is gone", pid)
	}
	state, ticks, err := parseStat(data)
	if err != nil {
		return start{}, fmt.Errorf("process %d: %w", pid, err)
	}
	if state == "Z" || state == "X" {
		return start{}, fmt.Errorf("the process is not running: process %d has ended", pid)
	}
	s := start{Moment: now(0)}
	up := ticks * (1_000_000 / ticksPerSecond)
	s.Wall = s.Wall.Add(-time.Duration(s.Up-up) * time.Microsecond)
	s.Up = up
	return s, nil
}

// parseStat reads state and start time from /proc/<pid>/stat. The name in parentheses may hold anything, parentheses and blanks too.
func parseStat(data []byte) (state string, ticks int64, err error) {
	i := strings.LastIndexByte(string(data), ')')
	fields := strings.Fields(string(data[i+1:]))
	if i < 0 || len(fields) < 20 {
		return "", 0, errors.New("its stat is not as expected")
	}
	ticks, err = strconv.ParseInt(fields[19], 10, 64)
	if err != nil || ticks < 0 || ticks > 1<<52 {
		return "", 0, errors.New("its start time is not a number")
	}
	return fields[0], ticks, nil
}

// Unit is a unit as systemd sees it.
type Unit struct {
	State string // active, inactive, failed, activating, …
	Start string // names this start of its process, "" if it is not known: another one is a restart
	start start
}

// Running says whether it is up, or on its way.
func (u Unit) Running() bool { return u.State != "inactive" && u.State != "failed" && u.State != "" }

// Unit asks systemd.
func (p *Prober) Unit(ctx context.Context, name string) (Unit, error) {
	ctx, cancel := context.WithTimeout(ctx, AskLimit)
	defer cancel()
	return unitOf(ctx, name)
}

func unitOf(ctx context.Context, name string) (Unit, error) {
	out := &bounded{}
	errs := &tail{}
	c := Command{Argv: []string{"systemctl", "show", "--property=LoadState,ActiveState,MainPID,ExecMainStartTimestampMonotonic,ActiveEnterTimestampMonotonic", "--", name}, Limit: AskLimit}
	if err := run(ctx, c, out, errs); err != nil {
		return Unit{}, fmt.Errorf("ask systemd about %s: %w", name, err)
	}
	return parseUnit(name, string(out.buf))
}

func parseUnit(name, text string) (Unit, error) {
	said := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "=")
		if ok {
			said[key] = value
		}
	}
	switch {
	case said["ActiveState"] == "":
		return Unit{}, fmt.Errorf("ask systemd about %s: it does not say whether the unit is active", name)
	case said["LoadState"] == "not-found":
		return Unit{}, fmt.Errorf("systemd knows no unit %s; check unit: in the configuration", name)
	}
	u := Unit{State: said["ActiveState"], start: start{Moment: now(0), mono: true}}
	began := said["ActiveEnterTimestampMonotonic"]
	if said["MainPID"] != "0" && said["MainPID"] != "" {
		began = said["ExecMainStartTimestampMonotonic"]
	}
	us, err := strconv.ParseInt(began, 10, 64)
	if err != nil || us < 0 {
		return u, nil //nolint:nilerr // it has not been up yet: then it counts as old, see start.Before
	}
	u.start.Wall = u.start.Wall.Add(-time.Duration(u.start.Mono-us) * time.Microsecond)
	u.start.Mono = us
	if us > 0 {
		u.Start = u.start.String()
	}
	return u, nil
}

// StartedAfter says whether the unit's process is younger than m.
func (u Unit) StartedAfter(m Moment) bool { return u.Running() && !u.start.Before(m) }
