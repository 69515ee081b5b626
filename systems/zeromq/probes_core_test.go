package zeromq

import (
	"reflect"
	"testing"
)

// TestTalksRestAsLongOnEveryScale: a talk waits for fixed times, so that the
// broker's periods must not grow with the scale.
func TestTalksRestAsLongOnEveryScale(t *testing.T) {
	one, slow := Tightened(Profiles(1)[0].(Profile).Broker()), Tightened(Profiles(10)[0].(Profile).Broker())
	slow.WriteTimeout = one.WriteTimeout // no talk waits for it
	if !reflect.DeepEqual(one, slow) {
		t.Errorf("on another scale the broker of a talk is %+v, and not %+v", slow, one)
	}
}
