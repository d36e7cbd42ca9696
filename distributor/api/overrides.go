package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// PathOverrides takes what an operator key signed, for operators who have no rights on the bucket.
const PathOverrides = "/v1/overrides"

// MaxPutObject bounds a bundle that is stored through the collector, which holds it in memory meanwhile.
const MaxPutObject = 64 << 20

// putTime is how long a bundle may take on its way there.
const putTime = 5 * time.Minute

// OverridePost is the body of POST /v1/overrides: exactly one of both, signed by an operator key. First the release of an override, when its bundles are stored; then for each
// cohort what its head gets: the override, one of the same id that lasts longer, or its end.
type OverridePost struct {
	Release  *manifest.Envelope `json:"release,omitempty"`
	Override *manifest.Envelope `json:"override,omitempty"`
}

// OverridePosted answers it.
type OverridePosted struct {
	ID      string `json:"id"`
	Epoch   uint64 `json:"epoch"`
	Cohort  string `json:"cohort,omitempty"`  // of an override
	Mark    string `json:"mark,omitempty"`    // of the head that has it
	Warning string `json:"warning,omitempty"` // it is done, and something beside it went wrong
}

// ListedObject is one object of GET /v1/objects/?prefix=.
type ListedObject struct {
	Key      string    `json:"key"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
}

// PostOverride hands over what an operator key signed.
func (c *Client) PostOverride(ctx context.Context, post OverridePost) (*OverridePosted, error) {
	body, err := wire.Encode(post)
	if err != nil {
		return nil, fmt.Errorf("encode the override: %w", err)
	}
	var out OverridePosted
	if err := c.ask(ctx, http.MethodPost, PathOverrides, nil, body, requestTimeout, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// PutObject stores a bundle, or a list of variants, under its digest. For operators.
func (c *Client) PutObject(ctx context.Context, key string, data []byte) error {
	return c.ask(ctx, http.MethodPut, PathObjects+(&url.URL{Path: key}).EscapedPath(), nil, data, putTime, nil)
}

// ListObjects lists at most most objects under prefix that sort after `after`. For operators of all cohorts.
func (c *Client) ListObjects(ctx context.Context, prefix, after string, most int) ([]ListedObject, error) {
	q := url.Values{"prefix": {prefix}, "max": {strconv.Itoa(most)}}
	if after != "" {
		q.Set("after", after)
	}
	var list []ListedObject
	if err := c.ask(ctx, http.MethodGet, PathObjects, q, nil, requestTimeout, &list); err != nil {
		return nil, err
	}
	return list, nil
}
