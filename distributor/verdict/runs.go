package verdict

import "github.com/muster-config/muster/distributor/manifest"

// Runs reports whether a host's last report confirms exactly what it is to run now, whatever assigns it: a wave, a hold or an override. How it stands otherwise, its Verdict says.
func Runs(in Input) bool {
	if in.View == nil || in.Report == nil {
		return false
	}
	res, err := manifest.Resolve(in.View, manifest.Host{Name: in.Host, Labels: in.Report.Labels}, in.Now)
	if err != nil || res.Variants != nil && in.Variants == nil {
		return false
	}
	if res.Variants != nil {
		res = res.WithVariants(in.Host, *in.Variants)
	}
	ok, _ := confirms(in.Report, res)
	return ok
}
