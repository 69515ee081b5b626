package statements_test

import (
	"testing"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/internal/statements"
	"github.com/custodymq/custody/links/linktest"
)

func TestKindOf(t *testing.T) {
	for sql, want := range map[string]string{
		"":                                      statements.Query,
		"begin":                                 statements.Begin,
		"START TRANSACTION":                     statements.Begin,
		"START SLAVE":                           statements.Query,
		"COMMIT;":                               statements.Commit,
		"rollback":                              statements.Rollback,
		"ROLLBACK TO SAVEPOINT a":               statements.Query,
		"\n INSERT INTO custody_row (part":      statements.Insert,
		"UPDATE custody_row AS r SET":           statements.Update,
		"UPDATE (SELECT 1 AS id) AS v":          statements.Update,
		"DELETE r FROM (SELECT":                 statements.Delete,
		"UPDATE custody_partition SET":          statements.Mark,
		"INSERT INTO custody_partition (id)":    statements.Mark,
		"SELECT id FROM custody_partition":      statements.Query,
		"CREATE TABLE insert (id BIGINT)":       statements.Query,
		"INSERTED":                              statements.Query,
		"SET SESSION TRANSACTION ISOLATION LEV": statements.Query,
	} {
		if got := statements.KindOf([]byte(sql)); got != want {
			t.Errorf("%q is %q, want %q", sql, got, want)
		}
	}
}

func TestLegal(t *testing.T) {
	for _, s := range servers {
		for _, k := range s.protocol.Kinds() {
			for _, a := range []links.Action{links.Drop, links.Duplicate, links.Corrupt} {
				linktest.Legal(t, s.protocol, k.Name, a, false)
			}
			for _, a := range []links.Action{links.Withhold, links.Hold, links.Delay, links.CutBefore, links.CutAfter} {
				linktest.Legal(t, s.protocol, k.Name, a, true)
			}
			if a, err := links.EffectiveAction(s.protocol, k.Name, links.Drop); a != links.Withhold || err != nil {
				t.Errorf("a drop of %s becomes %q, %v", k.Name, a, err)
			}
		}
	}
}
