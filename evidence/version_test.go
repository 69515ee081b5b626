package evidence

import (
	"runtime/debug"
	"testing"
)

func TestVersion(t *testing.T) {
	own := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: module, Version: version}, Settings: settings}
	}
	library := func(d debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: "example.org/shop", Version: "v9.9.9"}, Deps: []*debug.Module{{Path: "example.org/x", Version: "v8.0.0"}, &d}}
	}
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.3":  own("v1.2.3"),
		"(devel)": own("(devel)"),
		"(devel) 0123456789ab with changes": own("", debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef"},
			debug.BuildSetting{Key: "vcs.modified", Value: "true"}),
		"v0.4.0": library(debug.Module{Path: module, Version: "v0.4.0"}),
		"v0.5.0": library(debug.Module{Path: module, Version: "v0.4.0", Replace: &debug.Module{Path: "../custody", Version: "v0.5.0"}}),
	} {
		if got := versionOf(info); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
