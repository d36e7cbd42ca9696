package s3_test

import (
	"fmt"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/s3"
	"github.com/muster-config/muster/distributor/store/storetest"
	"github.com/muster-config/muster/distributor/store/storetest/s3server"
)

func TestConformanceInProcess(t *testing.T) {
	srv := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
	defer srv.Close()
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) store.Store {
		// A bucket each, without a prefix: the whole bucket is the store.
		s := openAt(t, fmt.Sprintf("s3://bucket-%d?endpoint=%s&path_style=true", n.Add(1), srv.URL), s3.Options{})
		if err := s.MakeBucket(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestConformanceRealServer(t *testing.T) {
	srv := s3server.Start(t)
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) store.Store {
		return openAt(t, srv.Prefix(fmt.Sprintf("store-%d/sub", n.Add(1))), srv.Options())
	})
	s := openAt(t, srv.Prefix("cas"), srv.Options())
	if err := s.CheckCAS(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := s.List(t.Context(), "", "", 10); err != nil || len(left) != 0 {
		t.Errorf("the probe was left behind: %v, %v", left, err)
	}
}

func openAt(t *testing.T, url string, o s3.Options) *s3.Store {
	t.Helper()
	if o.Credentials == nil {
		o.Credentials = s3.Static("key", "SECRETSECRET")
	}
	s, err := s3.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
