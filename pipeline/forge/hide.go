package forge

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
)

const (
	maxHidden = 8 // a token in use, the one before it, the app's and some that were replaced
	minHidden = 8 // bytes: what is shorter is no token, and would mask words
)

// hide remembers a credential that was sent: what the server says is printed, and it must not repeat one.
func (l *line) hide(token string) {
	if len(token) < minHidden {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.secrets, token) {
		return
	}
	l.secrets = append(l.secrets, token)
	if len(l.secrets) > maxHidden {
		l.secrets = slices.Delete(l.secrets, 0, 1)
	}
}

// hidden masks the credentials in what a server said. A complaint is written anew first: JSON can spell a character in several ways.
func (l *line) hidden(data []byte, complaint bool) []byte {
	var v any
	if complaint && json.Unmarshal(data, &v) == nil {
		if same, err := json.Marshal(v); err == nil {
			data = same
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, token := range l.secrets {
		if bytes.Contains(data, []byte(token)) {
			data = bytes.ReplaceAll(data, []byte(token), []byte("***"))
		}
	}
	return data
}

func (l *line) hiddenHeader(h http.Header) http.Header {
	for _, values := range h {
		for i := range values {
			values[i] = string(l.hidden([]byte(values[i]), false))
		}
	}
	return h
}
