package main

import (
	"go/ast"
	"go/token"
)

// Operators that gremlins lacks. It replaces tokens; broker bugs are more often
// something not done: a message not queued, a timer not stopped, a case not
// handled.
const (
	statementRemoved = "STATEMENT_REMOVED" // a call, assignment, send, defer, go or early return is removed
	branchRemoved    = "BRANCH_REMOVED"    // the body of an if is never entered
	caseRemoved      = "CASE_REMOVED"      // the body of a case is never entered
	conditionNegated = "CONDITION_NEGATED" // of an if whose condition is not a comparison, which gremlins covers
	booleanFlipped   = "BOOLEAN_FLIPPED"   // true and false are swapped
)

// omissions returns a file's mutants by these operators. Removed code stays
// behind "if false", so that every name is still used.
func omissions(s *source) []Mutant {
	var found []Mutant
	add := func(operator string, changes ...change) {
		if m, ok := s.mutant(operator, changes...); ok {
			found = append(found, m)
		}
	}
	never := func(operator string, from, to ast.Node) {
		start, end := s.offset(from.Pos()), s.offset(to.End())
		add(operator, change{start, start, "if false { "}, change{end, end, " }"})
	}
	statements := func(list []ast.Stmt) {
		for _, st := range list {
			if removable(st, list) {
				never(statementRemoved, st, st)
			}
		}
	}
	alone := map[*ast.BlockStmt]bool{} // bodies whose only statement is removed with the branch
	ast.Inspect(s.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			start, end := s.offset(n.Cond.Pos()), s.offset(n.Cond.End())
			add(branchRemoved, change{start, start, "("}, change{end, end, ") && false"})
			if _, binary := n.Cond.(*ast.BinaryExpr); !binary {
				add(conditionNegated, change{start, start, "!("}, change{end, end, ")"})
			}
			alone[n.Body] = n.Else == nil && len(n.Body.List) == 1
		case *ast.BlockStmt:
			if !alone[n] {
				statements(n.List)
			}
		case *ast.CaseClause:
			body(n.Body, never, statements)
		case *ast.CommClause:
			body(n.Body, never, statements)
		case *ast.Ident:
			switch n.Name {
			case "true":
				add(booleanFlipped, change{s.offset(n.Pos()), s.offset(n.End()), "false"})
			case "false":
				add(booleanFlipped, change{s.offset(n.Pos()), s.offset(n.End()), "true"})
			}
		}
		return true
	})
	return found
}

func body(list []ast.Stmt, never func(string, ast.Node, ast.Node), statements func([]ast.Stmt)) {
	if len(list) > 0 {
		never(caseRemoved, list[0], list[len(list)-1])
	}
	if len(list) > 1 {
		statements(list)
	}
}

// removable reports whether a statement of a list can be removed.
func removable(st ast.Stmt, list []ast.Stmt) bool {
	switch st := st.(type) {
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt:
		return true
	case *ast.AssignStmt:
		return st.Tok != token.DEFINE
	case *ast.ReturnStmt: // alone, it is removed with its branch
		return len(list) > 1
	}
	return false
}
