package servertest

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Postgres makes a server of PostgreSQL on 127.0.0.1, which the caller gives
// Answers and starts. Its superuser is custody, with a password unless that is
// empty.
func Postgres(t testing.TB, port int, password string) *Server {
	t.Helper()
	const places = "/usr/lib/postgresql/*/bin"
	initdb, postgres := Program(t, "initdb", places), Program(t, "postgres", places)
	var as *syscall.Credential
	if os.Getuid() == 0 { // it refuses to run as root
		as = userNamed(t, "postgres")
	}
	dir := Folder(t, as)
	data := filepath.Join(dir, "data")
	s := &Server{As: as, Dir: dir, Command: []string{postgres, "-D", data, "-k", "", "-c", "listen_addresses=127.0.0.1", "-p", strconv.Itoa(port), "-c", "max_connections=200"}}
	entry := []string{"-A", "trust"}
	if password != "" {
		file := filepath.Join(dir, "password")
		write(t, file, password, 0o644)
		entry = []string{"-A", "scram-sha-256", "--pwfile", file}
	}
	s.Once(t, append([]string{initdb, "-D", data, "-U", "custody", "--no-sync", "-E", "UTF8"}, entry...)...)
	return s
}

// MariaDB is the same of MariaDB. Without a password there are no users at all.
func MariaDB(t testing.TB, port int, password string) *Server {
	t.Helper()
	install, daemon := Program(t, "mariadb-install-db"), Program(t, "mariadbd", "/usr/sbin")
	dir := Folder(t, nil)
	data := filepath.Join(dir, "data")
	s := &Server{Dir: dir, Command: []string{daemon, "--no-defaults", "--datadir=" + data, "--tmpdir=" + dir, "--port=" + strconv.Itoa(port), "--bind-address=127.0.0.1",
		"--socket=" + filepath.Join(dir, "s"), "--innodb-flush-log-at-trx-commit=1"}}
	if password == "" {
		s.Command = append(s.Command, "--skip-grant-tables", "--skip-networking=0")
	} else {
		users := filepath.Join(dir, "users.sql")
		write(t, users, fmt.Sprintf("CREATE USER custody@'%%' IDENTIFIED BY '%s';\nGRANT ALL ON *.* TO custody@'%%';\n", password), 0o600)
		s.Command = append(s.Command, "--init-file="+users)
	}
	if os.Getuid() == 0 {
		s.Command = append(s.Command, "--user=root")
	}
	s.Once(t, install, "--no-defaults", "--datadir="+data, "--tmpdir="+dir, "--auth-root-authentication-method=normal", "--skip-test-db")
	return s
}

func write(t testing.TB, file, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func userNamed(t testing.TB, name string) *syscall.Credential {
	t.Helper()
	who, err := user.Lookup(name)
	if err != nil {
		Missing(t, "a user "+name)
	}
	uid, _ := strconv.Atoi(who.Uid)
	gid, _ := strconv.Atoi(who.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
