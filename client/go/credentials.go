package wattwise

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Credentials are a token and what TLS needs. The zero value is for a server on this machine that asks for neither.
type Credentials struct {
	// Token is what `wattwise token create` printed; empty sends none.
	Token string
	// TLS encrypts the connection; naming any of the files below does so too.
	TLS bool
	// CAFile holds the authorities that the server's certificate may be of, in PEM; empty is the system's.
	CAFile string
	// CertFile and KeyFile are for a server that asks for a client's certificate, in PEM.
	CertFile, KeyFile string
	// Insecure sends the token even where it can be read on the way: without TLS to another machine.
	Insecure bool
}

// CredentialsFromEnv reads WATTWISE_TOKEN, _TOKEN_FILE, _TLS, _TLS_CA, _TLS_CERT, _TLS_KEY and _INSECURE.
func CredentialsFromEnv() (given Credentials, err error) {
	given = Credentials{
		Token:    os.Getenv("WATTWISE_TOKEN"),
		CAFile:   os.Getenv("WATTWISE_TLS_CA"),
		CertFile: os.Getenv("WATTWISE_TLS_CERT"),
		KeyFile:  os.Getenv("WATTWISE_TLS_KEY"),
	}
	if given.TLS, err = yes("WATTWISE_TLS"); err != nil {
		return given, err
	}
	if given.Insecure, err = yes("WATTWISE_INSECURE"); err != nil {
		return given, err
	}
	if file := os.Getenv("WATTWISE_TOKEN_FILE"); given.Token == "" && file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return given, fmt.Errorf("cannot read the token of WATTWISE_TOKEN_FILE: %w", err)
		}
		given.Token = strings.TrimSpace(string(text))
	}
	return given, nil
}

func yes(name string) (bool, error) {
	switch said := strings.ToLower(os.Getenv(name)); said {
	case "1", "true", "yes", "on":
		return true, nil
	case "", "0", "false", "no", "off":
		return false, nil
	default:
		return false, fmt.Errorf("%s is %q: give 1 or 0", name, said)
	}
}

func (c Credentials) usesTLS() bool {
	return c.TLS || c.CAFile != "" || c.CertFile != "" || c.KeyFile != ""
}

func (c Credentials) dialOption(address string) (grpc.DialOption, error) {
	if !c.usesTLS() {
		if c.Token != "" && !c.Insecure && !isLoopback(address) {
			return nil, fmt.Errorf("the token is not sent to %s in clear, where others could read it: turn TLS on, "+
				"or spell out that nobody else is on the way (Insecure, WATTWISE_INSECURE=1)", address)
		}
		return grpc.WithInsecure(), nil
	}
	config, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(config)), nil
}

func (c Credentials) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM: it should begin with -----BEGIN CERTIFICATE-----", c.CAFile)
		}
	}
	if c.CertFile != "" || c.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("a certificate and its key go together, both in PEM: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return strings.HasPrefix(address, "unix:")
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
