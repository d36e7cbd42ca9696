package manifest

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Window is a time of the week in which a wave may begin: five fields as cron has them (minute, hour, day of the month, month, day of the week), in UTC. A minute belongs to it when all
// fields match; where both days are restricted, one of them is enough, as with cron.
type Window struct {
	minutes, hours, days, months, weekdays uint64 // bit sets
	anyDay, anyWeekday                     bool
}

var (
	monthNames   = []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
	weekdayNames = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}
)

// ParseWindow reads a window. Errors name the field.
func ParseWindow(s string) (Window, error) {
	fields := strings.Fields(s)
	if len(fields) != 5 {
		return Window{}, fmt.Errorf("window %.80q: %d fields, not 5: minute hour day month weekday, as `* 9-16 * * mon-fri`", s, len(fields))
	}
	var w Window
	for i, f := range []struct {
		name   string
		lo, hi int
		names  []string
		to     *uint64
	}{
		{"minute", 0, 59, nil, &w.minutes}, {"hour", 0, 23, nil, &w.hours}, {"day", 1, 31, nil, &w.days}, {"month", 1, 12, monthNames, &w.months}, {"weekday", 0, 7, weekdayNames, &w.weekdays},
	} {
		set, err := windowField(fields[i], f.lo, f.hi, f.names)
		if err != nil {
			return Window{}, fmt.Errorf("window %.80q: %s: %w", s, f.name, err)
		}
		*f.to = set
	}
	if w.weekdays&(1<<7) != 0 {
		w.weekdays |= 1 // Sunday has two numbers
	}
	w.anyDay, w.anyWeekday = strings.HasPrefix(fields[2], "*"), strings.HasPrefix(fields[4], "*")
	return w, nil
}

// windowField reads "*", "3", "mon-fri", "*/15", "1-10/2", and lists of those.
func windowField(s string, lo, hi int, names []string) (set uint64, err error) {
	for _, part := range strings.Split(s, ",") {
		span, step, stepped := strings.Cut(part, "/")
		every := 1
		if stepped {
			if every, err = strconv.Atoi(step); err != nil || every < 1 || every > hi {
				return 0, fmt.Errorf("%.40q is no step", step)
			}
		}
		from, to := lo, hi
		if span != "*" {
			a, b, isSpan := strings.Cut(span, "-")
			if from, err = windowValue(a, lo, hi, names); err != nil {
				return 0, err
			}
			switch {
			case isSpan:
				if to, err = windowValue(b, lo, hi, names); err != nil {
					return 0, err
				}
			case !stepped:
				to = from
			}
			if from > to {
				return 0, fmt.Errorf("%.40q runs backwards: write it as two", span)
			}
		}
		for v := from; v <= to; v += every {
			set |= 1 << v
		}
	}
	return set, nil
}

func windowValue(s string, lo, hi int, names []string) (int, error) {
	for i, name := range names {
		if strings.EqualFold(s, name) {
			return lo + i, nil
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi || strings.HasPrefix(s, "+") {
		return 0, fmt.Errorf("%.40q is not from %d to %d", s, lo, hi)
	}
	return n, nil
}

// Contains says whether the window is open.
func (w Window) Contains(t time.Time) bool {
	t = t.UTC()
	return w.onDay(t) && w.hours&(1<<t.Hour()) != 0 && w.minutes&(1<<t.Minute()) != 0
}

func (w Window) onDay(t time.Time) bool {
	if w.months&(1<<int(t.Month())) == 0 {
		return false
	}
	day, weekday := w.days&(1<<t.Day()) != 0, w.weekdays&(1<<int(t.Weekday())) != 0
	if w.anyDay || w.anyWeekday {
		return day && weekday
	}
	return day || weekday
}

// next is the first minute at or after t at which the window is open; zero if there is none within eight years.
func (w Window) next(t time.Time) time.Time {
	t = t.UTC().Truncate(time.Minute)
	for end := t.AddDate(8, 0, 0); t.Before(end); {
		switch {
		case !w.onDay(t):
			t = time.Date(t.Year(), t.Month(), t.Day()+1, 0, 0, 0, 0, time.UTC)
		case w.hours&(1<<t.Hour()) == 0:
			t = t.Truncate(time.Hour).Add(time.Hour)
		case w.minutes&(1<<t.Minute()) == 0:
			t = t.Add(time.Minute)
		default:
			return t
		}
	}
	return time.Time{}
}

// NextWindow is the first minute at or after t at which one of the windows is open; zero if none ever is. What cannot be read is none.
func NextWindow(windows []string, t time.Time) time.Time {
	var first time.Time
	for _, s := range windows {
		w, err := ParseWindow(s)
		if err != nil {
			continue
		}
		if next := w.next(t); !next.IsZero() && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first
}
