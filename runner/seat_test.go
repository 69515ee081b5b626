package runner

import (
	"testing"

	"github.com/custodymq/custody/script"
)

// A consumer keeps its seat while it runs; the next one takes the lowest free
// seat.
func TestSeats(t *testing.T) {
	b := &run{}
	add := func(name, as string) *actor {
		a := &actor{role: role{Consumer: &script.Consumer{Name: name, Destination: "orders", As: as}}, run: b}
		b.actors = append(b.actors, a)
		return a
	}
	sit := func(a *actor, want int) {
		t.Helper()
		if a.seat = b.freeSeat(a); a.seat != want {
			t.Errorf("%s has seat %d, want %d", a.name(), a.seat, want)
		}
		a.running = true
	}
	c1, c2, c3, other := add("c1", "billing"), add("c2", "billing"), add("c3", "billing"), add("c4", "stock")
	sit(c1, 0)
	sit(c2, 1)
	sit(other, 0)
	c1.running = false
	sit(c3, 0)
	sit(c1, 2)
}
