package forge_test

import (
	"strings"
	"testing"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// A server, or a proxy before it, that repeats the token it was sent does not get it printed, however it spells it; nor does it get much printed at all.
func TestTokenRepeated(t *testing.T) {
	spelled := `\u0067` + token[1:]
	for name, reply := range map[string]forgetest.Reply{
		"message":    {Status: 422, Body: `{"message":"no: Bearer ` + token + `"}`},
		"spelled":    {Status: 403, Body: `{"message":"no: Bearer ` + spelled + `"}`},
		"list":       {Status: 422, Body: `{"message":"no","errors":[{"message":"` + token + `"}]}`},
		"page":       {Status: 403, Body: "<html>" + token},
		"page late":  {Status: 429, Body: strings.Repeat("x", 190) + token},
		"limit":      {Status: 429, Header: map[string]string{"Retry-After": "3000"}, Body: `{"message":"` + token + `"}`},
		"redirected": {Status: 302, Header: map[string]string{"Location": "bad://x/" + token}},
		"long":       {Status: 422, Body: `{"message":"` + strings.Repeat("long ", 1000) + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.Before = func(forgetest.Call) *forgetest.Reply { return &reply }
			err := w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good})
			if err == nil || strings.Contains(err.Error(), token[4:12]) || len(err.Error()) > 500 {
				t.Errorf("%d bytes: %v", len(err.Error()), err)
			}
		})
	}
}
