package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/broker/certificates"
	"github.com/custodymq/custody/evidence"
)

// accessFlags configure who may use a broker and its TLS.
type accessFlags struct {
	users               string
	cert, key, clientCA string
}

func (f *accessFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.users, "users", "", "file of users and what each may do, instead of --token-env; custody broker user add writes it")
	flags.StringVar(&f.cert, "tls-cert", "", "file with the certificate of the broker, in PEM; clients must then use TLS")
	flags.StringVar(&f.key, "tls-key", "", "file with its key")
	flags.StringVar(&f.clientCA, "tls-client-ca", "", "file with the authorities of client certificates: with --users a name in one stands for a token, without every client must show one")
}

func (f *accessFlags) check(tokenEnv string) error {
	switch {
	case f.users != "" && tokenEnv != "":
		return errors.New("--users and --token-env exclude each other: give the holder of the token an entry in the file")
	case (f.cert == "") != (f.key == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case f.clientCA != "" && f.cert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	}
	return nil
}

// renewed is what SIGHUP reloads.
type renewed struct {
	users        string
	certificates *certificates.Server
}

func (f *accessFlags) open(config *broker.Config) (r renewed, err error) {
	r.users = f.users
	if f.users != "" {
		if config.Users, err = readUsers(f.users); err != nil {
			return r, err
		}
	}
	if f.cert == "" {
		return r, nil
	}
	r.certificates, err = certificates.Open(certificates.ServerFiles{
		Certificate: f.cert, Key: f.key, ClientCA: f.clientCA, RequireClient: f.clientCA != "" && f.users == "",
	})
	if err == nil {
		config.TLS = r.certificates.Config()
	}
	return r, err
}

// reload applies everything or, on an error, nothing.
func (r renewed) reload(server *broker.Server, log *slog.Logger) {
	var users *access.Users
	var err error
	if r.users != "" {
		users, err = readUsers(r.users)
	}
	if err == nil && r.certificates != nil {
		err = r.certificates.Reload()
	}
	if err != nil {
		log.Error("nothing was reloaded: what was read before stays", "error", err)
		return
	}
	if users != nil {
		server.SetUsers(users)
	}
	log.Warn("users and certificates were reloaded", "users", r.users, "tls", r.certificates != nil)
}

const maxUsersFile = 4 << 20

func readUsers(file string) (*access.Users, error) {
	text, err := evidence.ReadRegular(file, maxUsersFile)
	if err != nil {
		return nil, fmt.Errorf("read the users: %w", err)
	}
	return access.Parse(file, text)
}

func userCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "user add",
		Short:   "Give a user of the reference broker a token and permissions",
		Example: "  custody broker user add shop --users users.yaml --publish orders/+",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("broker user has no command %q; there is add", args[0])
			}
			return errors.New("say what to do with the users: add")
		},
	}
	cmd.AddCommand(userAddCommand())
	return cmd
}

func userAddCommand() *cobra.Command {
	var file string
	var user access.User
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a user to the file, and print the token, once",
		Long: `Add a user to a file of users, which is made if it is not there. A random token is
printed, once: the file keeps only its SHA-256. A broker that runs with the file
reads it again at SIGHUP.

A topic filter follows MQTT: + is one level, # the topic and all below it. To
subscribe to a filter, one that is permitted must cover the whole of it. Who may
administer may ask for statistics and rows, and settle dead letters.`,
		Example: `  custody broker user add shop --users users.yaml --publish orders/+
  custody broker user add stock --users users.yaml --subscribe orders/# --certificate stock.example
  custody broker user add operator --users users.yaml --administer`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return fmt.Errorf("broker user add takes one name, not %d", len(args))
			case file == "":
				return errors.New("say in which file: --users users.yaml")
			}
			user.Name = args[0]
			return addUser(cmd.OutOrStdout(), file, user)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "users", "", "the file")
	flags.StringArrayVar(&user.Publish, "publish", nil, "topic filter of what the user may publish to; may be given again")
	flags.StringArrayVar(&user.Subscribe, "subscribe", nil, "topic filter of what the user may subscribe to; may be given again")
	flags.BoolVar(&user.Administer, "administer", false, "the user may administer")
	flags.StringVar(&user.Certificate, "certificate", "", "name in the client certificate by which the user is known, instead of a token")
	return cmd
}

func addUser(out io.Writer, file string, user access.User) error {
	text, err := evidence.ReadRegular(file, maxUsersFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unmeasured{fmt.Errorf("read the users: %w", err)}
	}
	token, hash := "", ""
	if user.Certificate == "" {
		token, hash = access.NewToken()
	}
	if text, err = access.Add(file, text, user, hash); err != nil {
		return unmeasured{err}
	}
	err = writeWithMode(file, 0o600, func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(text))
		return err
	})
	if err != nil {
		return unmeasured{fmt.Errorf("write the users: %w", err)}
	}
	if token == "" {
		fmt.Fprintf(out, "%s is known by certificates with the name %s\n", user.Name, user.Certificate)
		return nil
	}
	fmt.Fprintln(out, token)
	return nil
}
